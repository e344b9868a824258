#!/usr/bin/env python3
"""Counts how far a crate consists of parts: fields per struct, methods used across files, import cycles.

    python3 testnet/scripts/parts.py gossip/src [STRUCT]

For STRUCT (default: the one with most fields) it says how many fields it has, how many methods over how
many files, and how often a file calls such a method of itself that another file defines. Imports are
resolved through re-exports to the file that defines the item; tests are left out.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

ITEM = r"(?:struct|enum|trait|type|const fn|async fn|fn|const|static|union)\s+(\w+)"


def source(path):
    text = path.read_text().split("#[cfg(test)]")[0]
    return re.sub(r"//[^\n]*|\bpub\(in [^)]*\)", "", text)


def module_of(root, path):
    parts = list(path.relative_to(root).with_suffix("").parts)
    return tuple(part for part in parts if part not in ("lib", "main", "mod"))


def leaves(tree, prefix=()):
    """The paths that a use tree names, as (path, name it gets here)."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        path, _, alias = tree.partition(" as ")
        path = prefix + tuple(part.strip() for part in path.split("::") if part.strip())
        if path[-1:] == ("self",):
            path = path[:-1]
        yield path, (alias.strip() or path[-1])
        return
    prefix += tuple(part.strip() for part in tree[:brace].split("::") if part.strip())
    depth, begin, inner = 0, 0, tree[brace + 1 : tree.rindex("}")]
    for at, char in enumerate(inner + ","):
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            if inner[begin:at].strip():
                yield from leaves(inner[begin:at], prefix)
            begin = at + 1


def components(graph):
    """Strongly connected components of more than one node, largest first (Tarjan)."""
    order, low, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            part = [stack.pop()]
            while part[-1] != node:
                part.append(stack.pop())
            found.append(part)

    for node in list(graph):
        if node not in order:
            visit(node)
    return sorted((sorted(part) for part in found if len(part) > 1), key=len, reverse=True)


def main():
    root = Path(sys.argv[1])
    found = (path for path in sorted(root.rglob("*.rs")) if not {"tests", "tests.rs", "testing", "testing.rs"} & set(path.parts))
    files = {module_of(root, path): path for path in found}
    texts = {module: source(path) for module, path in files.items()}
    items = {module: set(re.findall(ITEM, text)) for module, text in texts.items()}
    uses = {
        module: [leaf for tree in re.findall(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", text, re.M) for leaf in leaves(tree)]
        for module, text in texts.items()
    }

    def absolute(module, path):
        if path[:1] == ("crate",):
            return path[1:]
        if path[:1] == ("self",):
            return module + path[1:]
        base = module
        if path[:1] == ("super",):
            while path[:1] == ("super",):
                base, path = base[:-1], path[1:]
            return base + path
        return module + path if path[:1] and module + path[:1] in files else None

    def owner(path, seen=()):
        """The file that defines what an absolute path names."""
        for cut in range(len(path), -1, -1):
            module = path[:cut]
            if module in files:
                rest = path[cut:]
                if not rest or rest[0] in items[module]:
                    return module
                for target, name in uses[module]:
                    to = absolute(module, target)
                    if name == rest[0] and to is not None and (module, name) not in seen:
                        return owner(to + rest[1:], seen + ((module, name),))
                return module
        return None

    imports = {module: set() for module in files if module}
    for module in imports:
        paths = [path for path, _ in uses[module]]
        inline = re.findall(r"\b((?:crate|super)(?:::\w+)+)", texts[module])
        paths += [tuple(path.split("::")) for path in inline]
        for path in paths:
            to = absolute(module, path)
            target = owner(to) if to is not None else None
            if target and target != module:
                imports[module].add(target)

    structs, methods = {}, defaultdict(list)
    for module, text in texts.items():
        for name, body in re.findall(r"\bstruct\s+(\w+)[^;{(]*\{(.*?)\n\}", text, re.S):
            structs[name] = len(re.findall(r"^    (?:pub(?:\([^)]*\))?\s+)?\w+\s*:", body, re.M))
        for name, body in re.findall(r"^impl(?:<[^>]*>)?\s+(\w+)[^{]*\{(.*?)\n\}", text, re.S | re.M):
            for method in re.findall(r"^    (?:pub(?:\([^)]*\))?\s+)?(?:const |async )*fn\s+(\w+)", body, re.M):
                methods[method].append((name, module))
    of = sys.argv[2] if len(sys.argv) > 2 else max(structs, key=structs.get)
    own = {method: module for method, places in methods.items() for name, module in places if name == of}
    across = 0
    for module, text in texts.items():
        bodies = re.findall(rf"^impl(?:<[^>]*>)?\s+{of}\b[^{{]*\{{(.*?)\n\}}", text, re.S | re.M)
        called = re.findall(r"\bself\s*\.(\w+)\(", "".join(bodies))
        across += sum(own.get(method, module) != module for method in called)
    most = sorted(structs.items(), key=lambda item: -item[1])
    print(f"files {len(files)}, lines {sum(path.read_text().count(chr(10)) for path in files.values())}")
    print(f"{of}: {structs[of]} fields, {len(own)} methods over {len(set(own.values()))} files, {across} calls across files")
    print("most fields:", ", ".join(f"{name} {count}" for name, count in most[:8]))
    cycles = components(imports)
    print("files in import cycles:", ", ".join(str(len(cycle)) for cycle in cycles) or "none")
    for cycle in cycles:
        print("   ", " ".join("/".join(module) for module in cycle))


main()
