"""What the external baselines share: the arguments of `dnode join`, dnode's models and data in torch,
its optimizer and schedule, and the files that the harness reads.

The models are the same functions of the same named tensors as those of dnode's trainer: the harness
hands over the initial parameters, and measures the final ones itself.
"""
import argparse, gzip, json, math, os, struct, sys, threading, time
import numpy, torch
import torch.nn.functional as F

BEGUN = time.time()


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("command"); p.add_argument("--data-dir", required=True); p.add_argument("--listen", required=True)
    p.add_argument("--bootstrap", action="append", default=[]); p.add_argument("--set", action="append", default=[])
    p.add_argument("--exit-with-stdin", action="store_true"); p.add_argument("--no-mdns", action="store_true")
    p.add_argument("--initial", required=True, help="initial parameters, safetensors")
    a = p.parse_args()
    if a.exit_with_stdin:
        def watch():
            while os.read(0, 4096): pass
            os._exit(1)
        threading.Thread(target=watch, daemon=True).start()
    torch.set_num_threads(1)
    return a


def settings(a):
    """The settings, section by section, with the product's defaults where these scripts need one."""
    adamw = dict(learning_rate=0.004, weight_decay=0.1, warmup_steps=100, clip_norm=1.0)
    sgd = dict(learning_rate=0.02, weight_decay=0.0001, warmup_steps=20, clip_norm=5.0)
    c = dict(run=dict(seed=1, steps=2000, batch=32),
             model=dict(kind="mlp", hidden=[256, 128], layers=4, heads=4, width=128, context=64,
                        dropout=0.0),
             data=dict(kind="digits", path=None, shards=1, shard=0, skew="iid", stream=0),
             optimizer=dict(kind="adamw"), gossip={}, network={}, node=dict(checkpoint_every=0, metrics_every=25))
    for s in a.set:
        key, value = s.split("=", 1); section, key = key.split(".", 1)
        try: value = json.loads(value)
        except ValueError: value = value.strip('"')
        c.setdefault(section, {})[key] = value
    o = dict(momentum=0.9, beta1=0.9, beta2=0.99, schedule="cosine", final_fraction=0.1, accumulate=1,
             decayed="matrices")
    o.update(adamw if c["optimizer"]["kind"] == "adamw" else sgd); o.update(c["optimizer"]); c["optimizer"] = o
    if c["data"]["kind"] == "digits" or c["data"]["skew"] != "iid":
        sys.exit("this baseline reads MNIST and text files in iid shards only")
    if c["model"]["dropout"] or o["decayed"] != "matrices":
        sys.exit("this baseline drops nothing, and decays matrices alone")
    return c


# --- files -------------------------------------------------------------------------------------

def load_tensors(path):
    raw = open(path, "rb").read(); n = struct.unpack("<Q", raw[:8])[0]; head = json.loads(raw[8:8 + n])
    return {k: torch.from_numpy(numpy.frombuffer(raw[8 + n:], "<f4", count=(v["data_offsets"][1] - v["data_offsets"][0]) // 4,
                                                 offset=v["data_offsets"][0]).reshape(v["shape"]).copy())
            for k, v in head.items() if k != "__metadata__"}


def save_tensors(path, tensors):
    head, body = {}, b""
    for k, t in tensors.items():
        b = t.detach().contiguous().numpy().astype("<f4").tobytes()
        head[k] = dict(dtype="F32", shape=list(t.shape), data_offsets=[len(body), len(body) + len(b)]); body += b
    text = json.dumps(head).encode(); text += b" " * (-len(text) % 8)
    with open(path, "wb") as f: f.write(struct.pack("<Q", len(text)) + text + body)


# --- models ------------------------------------------------------------------------------------

def forward(c, p, x):
    """Logits of a batch; `p` are the named tensors of dnode's layout."""
    lin = lambda name, v: F.linear(v, p[name + ".weight"], p[name + ".bias"])
    m = c["model"]
    if m["kind"] == "mlp":
        names = sorted({k.rsplit(".", 1)[0] for k in p}); v = x.flatten(1)
        for i, name in enumerate(names): v = lin(name, v) if i == len(names) - 1 else F.relu(lin(name, v))
        return v
    if m["kind"] == "cnn":
        v = x.unsqueeze(1)
        for i in range(2):
            k = p[f"convolution{i}.weight"].permute(0, 3, 1, 2)
            v = F.max_pool2d(F.relu(F.conv2d(v, k, p[f"convolution{i}.bias"], padding=1)), 2)
        return lin("output", F.relu(lin("hidden", v.permute(0, 2, 3, 1).flatten(1))))
    norm = lambda name, v: F.layer_norm(v, v.shape[-1:], p[name + ".gain"], p[name + ".bias"], 1e-5)
    v = F.embedding(x, p["token_embedding"]) + p["position_embedding"][: x.shape[1]]
    b, t, d = v.shape; h = m["heads"]
    for i in range(m["layers"]):
        n = f"block{i}."
        q, k, w = lin(n + "attention", norm(n + "attention_norm", v)).view(b, t, 3, h, d // h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, w, is_causal=True).transpose(1, 2).reshape(b, t, d)
        v = v + lin(n + "projection", a)
        v = v + lin(n + "contract", F.gelu(lin(n + "expand", norm(n + "inner_norm", v)), approximate="tanh"))
    return F.linear(norm("final_norm", v), p["token_embedding"]).flatten(0, 1)


class Model(torch.nn.Module):
    def __init__(self, c, tensors):
        super().__init__(); self.c = c; self.names = list(tensors)
        self.values = torch.nn.ParameterList([torch.nn.Parameter(t) for t in tensors.values()])

    def named(self): return dict(zip(self.names, self.values))
    def forward(self, x): return forward(self.c, self.named(), x)


def optimizer_groups(c, model):
    """Weight decay moves tensors of two or more dimensions."""
    wd = c["optimizer"]["weight_decay"]
    return [dict(params=[v for v in model.values if v.dim() > 1], weight_decay=wd), dict(params=[v for v in model.values if v.dim() <= 1], weight_decay=0.0)]


def make_optimizer(c, params):
    o = c["optimizer"]
    if o["kind"] == "adamw": return torch.optim.AdamW(params, lr=o["learning_rate"], betas=(o["beta1"], o["beta2"]), eps=1e-8)
    sys.exit("this baseline knows adamw only")


def learning_rate(c, step):
    o, total = c["optimizer"], c["run"]["steps"]
    if step < o["warmup_steps"]: return o["learning_rate"] * (step + 1) / o["warmup_steps"]
    if o["schedule"] == "constant": return o["learning_rate"]
    done = min(1.0, (step - o["warmup_steps"]) / max(1, total - o["warmup_steps"]))
    return o["learning_rate"] * (o["final_fraction"] + (1 - o["final_fraction"]) * 0.5 * (1 + math.cos(math.pi * done)))


# --- data --------------------------------------------------------------------------------------

class Data:
    def __init__(self, c):
        d, r = c["data"], c["run"]; self.batch_size = r["batch"]; self.text = d["kind"] == "text"
        g = torch.Generator().manual_seed(r["seed"])
        if self.text:
            text = open(d["path"], encoding="utf-8").read(); kinds = sorted(set(text)); at = {k: i for i, k in enumerate(kinds)}
            self.tokens = torch.tensor([at[k] for k in text]); self.context = c["model"]["context"]
            self.train = len(text) - len(text) // 10; count = self.train - self.context
            self.held_out = [self.train + i * self.context for i in range((len(text) - self.train - 1) // self.context)]
        else:
            x, self.y = self.images(d["path"], "train"); mean, dev = x.mean(), x.std(unbiased=False)
            self.x = (x - mean) / dev; ex, self.ey = self.images(d["path"], "t10k"); self.ex = (ex - mean) / dev; count = len(self.x)
        self.own = torch.randperm(count, generator=g)[d["shard"]::d["shards"]]
        self.g = torch.Generator().manual_seed(1000 * r["seed"] + d["shard"]); self.order = iter(())

    @staticmethod
    def images(folder, part):
        def read(name):
            path = os.path.join(folder, f"{part}-{name}")
            raw = gzip.open(path + ".gz").read() if os.path.exists(path + ".gz") else open(path, "rb").read()
            dims = raw[3]; shape = struct.unpack(f">{dims}I", raw[4:4 + 4 * dims])
            return torch.from_numpy(numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * dims).reshape(shape).copy())
        return read("images-idx3-ubyte").float(), read("labels-idx1-ubyte").long()

    def windows(self, starts):
        w = torch.stack([self.tokens[s: s + self.context + 1] for s in starts]); return w[:, :-1], w[:, 1:].flatten()

    def batch(self):
        chosen = []
        while len(chosen) < self.batch_size:
            i = next(self.order, None)
            if i is None: self.order = iter(self.own[torch.randperm(len(self.own), generator=self.g)].tolist()); continue
            chosen.append(i)
        return self.windows(chosen) if self.text else (self.x[chosen], self.y[chosen])

    def evaluation(self):
        if self.text:
            for i in range(0, len(self.held_out), 64): yield self.windows(self.held_out[i: i + 64])
        else:
            for i in range(0, len(self.ex), 256): yield self.ex[i: i + 256], self.ey[i: i + 256]


# --- metrics -----------------------------------------------------------------------------------

class Peer:
    """A peer's files, and what it has done."""

    def __init__(self, a, c, name):
        self.a, self.c = a, c; self.home = a.data_dir; os.makedirs(self.home, exist_ok=True)
        self.f = open(os.path.join(self.home, "metrics.jsonl"), "a"); self.step = 0; self.bytes = 0; self.since = []; self.t = 0.0; self.train_s = 0.0
        self.data = Data(c); self.model = Model(c, load_tensors(a.initial)); self.run = name
        self.line("start", unix_s=BEGUN, peer=f"{name}-{c['data']['shard']}", run=name, incarnation=1, parameters=sum(v.numel() for v in self.model.values), config=c)

    def line(self, kind, **kw):
        kw.update(kind=kind, time_s=time.time() - BEGUN, step=self.step, position=self.step, samples=self.step * self.c["run"]["batch"], clock=self.step)
        kw = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in kw.items()}
        self.f.write(json.dumps(kw) + "\n"); self.f.flush()

    def address(self, text):
        path = os.path.join(self.home, "address")
        with open(path + ".new", "w") as f: f.write(text + "\n")
        os.rename(path + ".new", path)

    def evaluate(self):
        loss = right = count = 0
        with torch.no_grad():
            for x, y in self.data.evaluation():
                z = self.model(x); loss += F.cross_entropy(z, y, reduction="sum").item(); right += (z.argmax(-1) == y).sum().item(); count += len(y)
        return dict(loss=loss / count, accuracy=right / count, count=count)

    def stepped(self, loss, seconds):
        self.step += 1; self.since.append(loss); self.t += seconds; self.train_s += seconds; n = self.c["node"]
        if self.step % n["metrics_every"] == 0:
            self.line("train", loss=sum(self.since) / len(self.since), learning_rate=learning_rate(self.c, self.step - 1), samples_per_s=len(self.since) * self.c["run"]["batch"] / self.t,
                      peers=self.c["data"]["shards"] - 1, bytes_out=int(self.bytes), bytes_in=int(self.bytes), staleness=0, wait_s=0.0)
            self.since, self.t = [], 0.0
        if n["checkpoint_every"] and self.step % n["checkpoint_every"] == 0:
            folder = os.path.join(os.path.abspath(self.home), "checkpoints", f"step-{self.step:012}"); os.makedirs(folder)
            save_tensors(os.path.join(folder, "parameters.safetensors"), self.model.named())
            self.line("event", name="checkpoint", detail=folder)

    def end(self):
        folder = os.path.join(self.home, "checkpoints"); os.makedirs(folder, exist_ok=True); path = os.path.join(os.path.abspath(folder), "parameters.safetensors")
        save_tensors(path, self.model.named()); e = self.evaluate()
        self.line("final", reason="steps done", loss=e["loss"], accuracy=e["accuracy"], bytes_out=int(self.bytes), bytes_in=int(self.bytes), wait_s=0.0, train_s=self.train_s, parameters_path=path)
