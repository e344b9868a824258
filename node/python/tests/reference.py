"""Prints docs/python-api.md: every public name of the package, from its signature and docstring.

    PYTHONPATH=FOLDER/WITH/dnode python node/python/tests/reference.py > docs/python-api.md
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import Callable

import dnode
from dnode import _step

HEAD = """# Python reference
Made from the package's signatures and docstrings by `node/python/tests/reference.py`; a test compares them. How to begin is in [python.md](python.md).
"""


def prose(text: str) -> str:
    """A docstring as Markdown: a paragraph, or an item for each parameter and exception."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text.replace("``", "`"))
    text = re.sub(r"\n +", " ", text)
    text = re.sub(r"(?m)^:param (\w+):", r"- `\1`:", text)
    text = re.sub(r"(?m)^:raises ([\w.]+):", r"- raises `\1`:", text)
    paragraphs = [
        part if part.startswith("- ") else part.replace("\n", " ") for part in text.split("\n\n")
    ]
    return "\n\n".join(paragraphs).replace("\n- ", "\n- ") + "\n"


def signature(name: str, function: Callable[..., object]) -> str:
    """As one types it, without `self` and without quotes around types."""
    words, starred = [], False
    told = inspect.signature(function)
    for it in told.parameters.values():
        if it.name == "self":
            continue
        if it.kind is it.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        word = f"**{it.name}" if it.kind is it.VAR_KEYWORD else it.name
        word += ": " + it.annotation.strip("'")
        if it.default is not it.empty:
            word += " = sys.executable" if it.default == sys.executable else f" = {it.default!r}"
        words.append(word)
    return f"{name}({', '.join(words)}) -> " + told.return_annotation.strip("'")


def comments(source: str) -> dict[str, str]:
    """Names by the `#:` lines before them."""
    found = re.findall(r"((?:^ *#: .*\n)+) *(\w+)\b", source, re.M)
    return {name: re.sub(r"\s*\n?\s*#: ", " ", lines).strip() for lines, name in found}


def of_class(name: str, kind: type) -> str:
    if issubclass(kind, Exception):
        (base, *_) = kind.__bases__
        return f"## `{name}({base.__name__})`\n{prose(inspect.getdoc(kind) or '')}"
    out = f"## `{name}`\n{prose(inspect.getdoc(kind) or '')}"
    fields = getattr(kind, "__dataclass_fields__", {})
    described = comments(inspect.getsource(kind))
    for field, it in fields.items():
        out += f"- `{field}: {it.type}`: {described[field].replace('``', '`')}\n"
    members = {} if fields else vars(kind)
    for member, it in members.items():
        if member.startswith("_"):
            continue
        if isinstance(it, property):
            returned = inspect.signature(it.fget).return_annotation  # type: ignore[arg-type]
            out += f"\n### `{name}.{member}: {returned}`\n"
        else:
            out += f"\n### `{signature(f'{name}.{member}', it)}`\n"
        out += prose(inspect.getdoc(it) or "")
    return out


def of_callback(module: str) -> str:
    """A class for a framework that need not be there: it is read, not imported."""
    tree = ast.parse((Path(dnode.__file__).parent / f"{module}.py").read_text())
    (kind,) = [it for it in tree.body if isinstance(it, ast.ClassDef)]
    members = {it.name: it for it in kind.body if isinstance(it, ast.FunctionDef)}
    words = ast.unparse(members["__init__"].args).removeprefix("self, ")
    swarm = members["swarm"]
    assert swarm.returns is not None
    return (
        f"## `dnode.{module}.{kind.name}({words})`\n{prose(ast.get_docstring(kind) or '')}\n"
        f"### `{kind.name}.swarm: {ast.unparse(swarm.returns)}`\n{prose(ast.get_docstring(swarm) or '')}"
    )


def page() -> str:
    parts = [HEAD]
    for name in sorted(dnode.__all__, key=lambda name: (name != "join", name != "Swarm", name.lower())):
        it = getattr(dnode, name)
        if name == "__version__":
            parts.append("## `__version__: str`\nThe version of the package.\n")
        elif it is str:
            described = comments(inspect.getsource(_step))[name].replace("``", "`")
            parts.append(f"## `{name}`\nA `str`. {described}\n")
        elif inspect.isclass(it):
            parts.append(of_class(name, it))
        else:
            parts.append(f"## `{signature(name, it)}`\n{prose(inspect.getdoc(it) or '')}")
    parts += [of_callback("transformers"), of_callback("lightning")]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
