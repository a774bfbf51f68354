"""Fixtures of the rules about memory, programmatic launches and the gain of overlap. Part of make_fixtures.py.

Kernel names are those of cglint's reference kernels: the known-kernel table says what they read and write.
"""
import json

from make_fixtures import ROOT, US, Graph, replay, shifted, write

MOE = "cglint::kernels::moe::"
KV_WRITE = "cglint::kernels::concat_and_cache_mla_kernel(__nv_bfloat16 const*, long, __nv_bfloat16 const*, long, long const*, __nv_bfloat16*)"
DECODE = "void cglint::kernels::mla_decode_split_kernel<4>(__nv_bfloat16 const*, __nv_bfloat16 const*, int const*, int const*, __nv_bfloat16*, float*, float2*, int, int, int, float)"
ADD = "cglint::kernels::residual_add_kernel(__nv_bfloat16 const*, __nv_bfloat16 const*, __nv_bfloat16*, long)"
CAST = MOE + "cast_bf16_kernel(float const*, __nv_bfloat16*, unsigned long)"
FILL = MOE + "zero_fill_kernel(unsigned char*, unsigned long)"
QUANTISE = MOE + "quantize_nvfp4_kernel(cglint::kernels::moe::QuantizeNvfp4Args, int)"
PRODUCT = "void " + MOE + "nvfp4_gemm_kernel<1, 8>(cglint::kernels::moe::Nvfp4GemmArgs, int)"
ALIGN = MOE + "moe_align_kernel(cglint::kernels::moe::AlignArgs)"
TOPK = "void " + MOE + "moe_topk_kernel<12>(cglint::kernels::moe::TopkArgs)"


class P(int):
    """A pointer argument."""


class MemoryGraph(Graph):
    """A graph with buffers and kernel parameters. Buffers are allocations of their own, made before the capture."""

    def __init__(self, streams: bool = True):
        super().__init__(streams)
        self.allocations, self.blocks, self.accesses = [], [], []
        self.programmatic = set()

    def buffer(self, size: int) -> P:
        base = 0x7F0000000000 + sum(-(-a["size_bytes"] // 0x100000) * 0x100000 for a in self.allocations)
        self.allocations.append({"id": len(self.allocations), "base": hex(base), "size_bytes": size, "kind": "device", "device": 0, "alloc_sequence": 1 + len(self.allocations)})
        return P(base)

    def allocation_of(self, address: int) -> int:
        for allocation in self.allocations:
            if int(allocation["base"], 16) <= address < int(allocation["base"], 16) + allocation["size_bytes"]:
                return allocation["id"]
        return -1

    def word(self, slot: int, offset: int, size: int, value: int) -> list:
        allocation = self.allocation_of(value) if size == 8 else -1
        return [slot, offset, size, hex(value)] + (["unknown", allocation] if allocation >= 0 else [])

    def launch(self, name: str, args: list, stream: int = 0, grid=8, block: int = 128, attribute=None) -> int:
        """args: P (pointer), int (32 bits), ("long", value), or {offset: value} for a struct passed by value, where a value is P,
        int or ("long" | "byte", value)."""
        node = self.node(name, stream, 1)
        record = self.nodes[node]
        record["grid"] = [grid, 1, 1] if isinstance(grid, int) else list(grid)
        record["block"] = [block, 1, 1]
        record["sequence"] = 1000 + 10 * node
        if attribute is not None:
            record["programmatic_serialization"] = attribute
        words = []
        for slot, value in enumerate(args):
            if isinstance(value, dict):
                packed = {}
                for offset, field in value.items():
                    width = 8 if isinstance(field, P) or (isinstance(field, tuple) and field[0] == "long") else 1 if isinstance(field, tuple) else 4
                    number = field[1] if isinstance(field, tuple) else int(field)
                    packed[offset // 8 * 8] = packed.get(offset // 8 * 8, 0) | (number & (1 << 8 * width) - 1) << 8 * (offset % 8)
                words += [self.word(slot, offset, 8, packed[offset]) for offset in sorted(packed)]
            elif isinstance(value, tuple):
                words.append(self.word(slot, 0, 8, value[1]))
            else:
                words.append(self.word(slot, 0, 8 if isinstance(value, P) else 4, int(value)))
        record["params"] = words
        return node

    def memset(self, dst: P, size: int, stream: int = 0) -> int:
        node = self.node("memset", stream, kind="memset")
        self.nodes[node].update({"dst": hex(dst), "width": size // 4, "height": 1, "pitch_bytes": 0, "element_bytes": 4, "value": 0, "dst_allocation": self.allocation_of(dst), "sequence": 1000 + 10 * node})
        return node

    def memcpy(self, dst: P, src: P, size: int, stream: int = 0) -> int:
        node = self.node("memcpy", stream, kind="memcpy")
        self.nodes[node].update({"dst": hex(dst), "src": hex(src), "width_bytes": size, "height": 1, "depth": 1, "src_kind": "device", "dst_kind": "device",
                                 "src_allocation": self.allocation_of(src), "dst_allocation": self.allocation_of(dst), "sequence": 1000 + 10 * node})
        return node

    def chain(self, node: int) -> None:
        """The edge into `node`, which has one, is programmatic."""
        self.programmatic.add(node)

    def lines(self, replays=None, facts_extra=(), **kwargs) -> list:
        facts = ["kernel_params", "copy_params", "allocations", *facts_extra]
        lines = super().lines(replays, facts_extra=facts, **kwargs)
        graph = next(line for line in lines if line["type"] == "graph")
        graph["info"]["begin_sequence"] = 500
        graph["edges"] = [edge + ([1, 0, 1] if edge[1] in self.programmatic else []) for edge in graph["edges"]]
        extra = [{"type": "allocations", "process": 0, "allocations": self.allocations}]
        if self.blocks:
            extra.append({"type": "allocator_blocks", "process": 0, "blocks": self.blocks})
        lines[2:2] = extra
        if self.accesses:
            at = next(i for i, line in enumerate(lines) if line["type"] == "graph") + 1
            lines.insert(at, {"type": "access", "graph": 0, "accesses": self.accesses})
            graph["facts"].append("measured_access")
        lines[-1]["records"] = len(lines) - 1
        return lines


def add_layers(g: MemoryGraph, layers: int, width: int = 4096):
    """One residual add per layer, so that layers follow each other: returns the hidden state."""
    hidden = g.buffer(2 * width)
    return hidden, lambda other: g.launch(ADD, [hidden, other, hidden, ("long", width // 8)])


def unordered_conflict() -> None:
    place = "order/unordered_conflict/"

    def attention(join: str, layers: int = 4, caches=None, microbatches: bool = False) -> MemoryGraph:
        g = MemoryGraph()
        tables = g.buffer(4096)
        latent, rope, query, partial, out = (g.buffer(1 << 16) for _ in range(5))
        hidden, residual = add_layers(g, layers)
        cache = [g.buffer(1 << 22) for _ in range(layers)]

        def write(layer, stream):
            return g.launch(KV_WRITE, [latent, ("long", 512), rope, ("long", 64), tables, cache[layer]], stream)

        def decode(layer, stream=0):
            return g.launch(DECODE, [query, cache[layer], tables, tables, out, partial, partial, 16, 6, 8, 0], stream)

        for layer in range(layers):
            residual(out)
            g.wait(1, 0)
            write(layer, 1)
            g.launch(ADD, [query, query, query, ("long", 256)])
            if join == "before":
                g.wait(0, 1)
            decode(layer)
            if join == "after":
                g.wait(0, 1)
        residual(out)
        return g

    write(place + "bad/join_after_the_reader", attention("after").lines())
    write(place + "good/join_before_the_reader", attention("before").lines())

    # Two microbatches on two streams, with one cache: each reads its own rows.
    g = MemoryGraph()
    tables, cache = g.buffer(4096), g.buffer(1 << 22)
    own = [[g.buffer(1 << 16) for _ in range(5)] for _ in range(2)]
    fork = g.launch(ADD, [own[0][0], own[0][0], own[0][0], ("long", 8)])
    g.wait_event(1, frozenset({fork}))
    for _ in range(3):
        for micro in range(2):
            latent, rope, query, partial, out = own[micro]
            g.launch(KV_WRITE, [latent, ("long", 512), rope, ("long", 64), tables, cache], micro)
            g.launch(DECODE, [query, cache, tables, tables, out, partial, partial, 16, 6, 8, 0], micro)
    g.wait(0, 1)
    g.launch(ADD, [own[0][4], own[1][4], own[0][0], ("long", 8)])
    write(place + "good/two_microbatches_one_cache", g.lines())

    # Fills and copies state what they touch.
    for name, overlap in (("bad/fill_beside_copy", True), ("good/fill_beside_copy_of_other_half", False)):
        g = MemoryGraph()
        a, b, c = (g.buffer(1 << 16) for _ in range(3))
        g.memset(a, 4096)
        g.wait(1, 0)
        g.memset(b, 4096, 1)
        g.memcpy(c, P(b if overlap else b + 4096), 4096)
        g.wait(0, 1)
        g.memcpy(a, c, 4096)
        write(place + name, g.lines())

    # The main branch hands the side branch's input to its next kernel: the address was given out again.
    for name, again in (("bad/recycled_before_the_join", True), ("good/own_buffers", False)):
        g = MemoryGraph()
        x, y, shared, other = (g.buffer(1 << 16) for _ in range(4))
        for _ in range(3):
            g.launch(ADD, [y, shared, x, ("long", 256)])
            g.wait(1, 0)
            g.launch(ADD, [x, x, shared, ("long", 256)], 1)
            g.launch(ADD, [x, x, y, ("long", 256)])
            g.launch(ADD, [y, y, x if again else other, ("long", 256)])
            g.wait(0, 1)
        g.launch(ADD, [y, shared, x, ("long", 256)])
        write(place + name, g.lines())

    # A programmatic edge orders memory where the consumer waits; a launch-order edge never does.
    for name, port in (("good/programmatic_chain", 1), ("bad/launch_order_edge", 2)):
        g = MemoryGraph()
        x, y, z = (g.buffer(1 << 16) for _ in range(3))
        for inputs, out in (([x, x], y), ([y, y], z), ([z, z], x)):
            g.launch(ADD, [*inputs, out, ("long", 256)])
        chain = g.lines()
        for line in chain:
            if line["type"] == "graph":
                line["edges"] = [[0, 1, port, 0, 1 if port == 1 else 0], [1, 2]]
        write(place + name, chain)

    # Kernels without signature, run one by one.
    g = MemoryGraph()
    x, y, z = (g.buffer(1 << 16) for _ in range(3))
    rows = [(g.launch("first", [x, y]), x, y)]
    g.wait(1, 0)
    rows.append((g.launch("side", [y, z], 1), y, z))
    rows.append((g.launch("main", [y, z]), z, x))
    g.wait(0, 1)
    rows.append((g.launch("last", [x, z]), x, z))
    for node, reads, writes in rows:
        g.accesses += [[node, hex(reads), hex(reads + 4096), "r"], [node, hex(writes), hex(writes + 4096), "w"]]
    write(place + "bad/measured", g.lines())

    # Words of structs without signature, beside a writer of the buffer that they point at. One is padding: an address once, numbers
    # after that. The others always are addresses: an array of pointers.
    g = MemoryGraph()
    x, q, out, first, second = (g.buffer(1 << 16) for _ in range(5))
    g.blocks = [{"base": allocation["base"], "size_bytes": 1 << 16, "state": "active"} for allocation in g.allocations]
    for layer in range(4):
        for written, kernel, struct in ((out, "step(StepArgs)", {0: x, 8: out if layer == 0 else ("long", 3 + layer)}),
                                        (second, "gather(Inputs)", {0: first, 8: second})):
            g.launch(ADD, [q, q, q, ("long", 256)])
            g.wait(1, 0)
            g.launch(ADD, [q, q, written, ("long", 256)], 1)
            g.launch(kernel, [struct])
            g.wait(0, 1)
    g.launch(ADD, [q, q, q, ("long", 256)])
    (ROOT / "tests/golden/cli/conflict_in_padding").mkdir(parents=True, exist_ok=True)
    write("../tests/golden/cli/conflict_in_padding/recording", g.lines())


def redundant_fill() -> None:
    place = "redundancy/redundant_fill/"

    def preamble(tiled: bool, zero_padding: bool = False, early_reader: bool = False, layers: int = 4) -> MemoryGraph:
        g = MemoryGraph(False)
        rows, columns = 4, 4096
        size = 128 * (columns // 64 * 4) if tiled else rows * columns // 16
        x, q, scales, scale, weights, out = g.buffer(1 << 20), g.buffer(1 << 18), g.buffer(1 << 16), g.buffer(256), g.buffer(1 << 22), g.buffer(1 << 20)
        for _ in range(layers):
            g.launch(FILL, [scales, ("long", size)])
            if early_reader:
                g.memcpy(out, scales, 256)
            g.launch(QUANTISE, [{0: x, 8: rows, 12: columns, 16: scale, 24: ("byte", int(tiled)), 25: ("byte", int(zero_padding)), 32: q, 40: scales}, columns // 16])
            g.launch(PRODUCT, [{0: q, 8: scales, 16: ("byte", int(tiled)), 24: weights, 32: weights, 40: scale, 56: rows, 60: 512, 64: columns, 68: ("byte", int(tiled)), 72: x}, 128 if tiled else rows])
        return g

    g = preamble(False)
    times = [(node, 7, 5 * node, 2 if node % 3 == 0 else 4) for node in range(len(g.nodes))]
    write(place + "bad/written_row_by_row", g.lines([replay(shifted(times, 1000 * i), 100 + i) for i in range(3)]))
    write(place + "bad/padding_is_written_too", preamble(True, zero_padding=True).lines())
    write(place + "good/padding_is_read", preamble(True).lines())
    write(place + "good/read_in_between", preamble(False, early_reader=True).lines())

    for name, copied in (("bad/memset_and_copies", 4096), ("good/copies_leave_a_rest", 2048)):
        g = MemoryGraph(False)
        a, b, c = (g.buffer(1 << 16) for _ in range(3))
        g.memset(a, 8192)
        g.memcpy(a, b, 4096)
        g.memcpy(P(a + 4096), b, copied)
        g.memcpy(c, a, 8192)
        write(place + name, g.lines())


def constant_recomputed() -> None:
    place = "redundancy/constant_recomputed/"

    def router(layers: int = 4, own_bias: bool = True, bias_is_written: bool = False) -> MemoryGraph:
        g = MemoryGraph(False)
        biases, bias, logits, weights, ids = g.buffer(4 * 384 * layers), g.buffer(768), g.buffer(4 * 384), g.buffer(32), g.buffer(32)
        hidden, residual = add_layers(g, layers)
        for layer in range(layers):
            residual(logits)
            own = P(biases + 4 * 384 * layer if own_bias else biases)
            if bias_is_written:
                g.memcpy(own, logits, 4 * 384)
            g.launch(CAST, [own, bias, ("long", 384)])
            g.launch(ADD, [hidden, hidden, logits, ("long", 96)])
            g.launch(TOPK, [{0: logits, 8: 1, 24: bias, 32: 1, 36: 384, 40: 8, 44: 1, 48: 1, 64: weights, 72: ids}])
        residual(logits)
        return g

    g = router()
    times = [(node, 7, 5 * node, 1.5) for node in range(len(g.nodes))]
    write(place + "bad/cast_per_layer", g.lines([replay(shifted(times, 1000 * i), 100 + i) for i in range(3)]))
    write(place + "good/written_in_the_graph", router(bias_is_written=True).lines())
    # The same input in all layers may be an input of the step.
    write(place + "good/one_input_for_all", router(own_bias=False).lines())
    # Launches after the capture write it: it changes between replays.
    g = router()
    lines = g.lines(facts_extra=("eager_launches",))
    eager = {"type": "graph", "graph": 1, "process": 0, "info": {"name": "eager", "role": "eager"}, "facts": ["nodes", "copy_params", "kernel_params", "allocations"],
             "nodes": [{"kind": "memcpy", "sequence": 90000, "dst": g.allocations[0]["base"], "src": g.allocations[2]["base"], "width_bytes": 6144, "height": 1, "depth": 1,
                        "src_kind": "device", "dst_kind": "device", "src_allocation": 2, "dst_allocation": 0}]}
    at = next(i for i, line in enumerate(lines) if line["type"] == "graph")
    lines[at:at] = [eager, {"type": "graph_end", "graph": 1}]
    lines[-1]["records"] = len(lines) - 1
    write(place + "good/updated_between_replays", lines)


def untuned_launch_config() -> None:
    place = "redundancy/untuned_launch_config/"
    tables = ROOT / "rules" / place / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    entry = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 256, "GROUP_SIZE_M": 1, "SPLIT_K": 4, "num_warps": 4, "num_stages": 4}
    table = {"1": entry, "8": {**entry, "SPLIT_K": 1}, "64": {**entry, "BLOCK_SIZE_M": 64, "SPLIT_K": 1, "num_warps": 8}}
    (tables / "E=96,N=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json").write_text(json.dumps(table, indent=4) + "\n")

    def layers(tokens: int, m: int, n: int, k: int, warps: int, stages: int, splits=(1, 1)) -> MemoryGraph:
        g = MemoryGraph(False)
        hidden, intermediate, experts, top_k = 7168, 2048, 96, 8
        pairs = tokens * top_k
        ids, sorted_ids, expert_ids, padded, positions = (g.buffer(1 << 20) for _ in range(5))
        x, x_scale, w13, w2, scales, up, act, act_scale, out = (g.buffer(1 << 26) for _ in range(9))
        name = "void " + MOE + f"moe_gemm_kernel<({MOE}WeightType)1, {m}, {n}, {k}, {warps}, 1>({MOE}MoeGemmParams)"

        def product(a, a_scale, weights, target, divisor, rows, columns, split):
            lists = {48: sorted_ids, 56: expert_ids, 64: padded, 72: 1}
            return g.launch(name, [{0: a, 8: a_scale, 16: weights, 24: scales, 32: target, 40: ("byte", 0), **lists, 76: pairs, 80: divisor, 84: rows, 88: columns, 92: ("byte", 0),
                                    96: 1, 100: rows // n, 104: 1, 108: stages, 112: 1, 116: 65536}], grid=(rows // n, split, 1), block=32 * warps)

        for _ in range(2):
            g.launch(ALIGN, [{0: ids, 8: pairs, 12: 384, 16: ids, 24: experts, 28: m, 32: sorted_ids, 40: expert_ids, 48: padded, 56: positions}], grid=1)
            product(x, x_scale, w13, up, top_k, 2 * intermediate, hidden, splits[0])
            g.launch(ADD, [up, up, act, ("long", 256)])
            product(act, act_scale, w2, out, 1, hidden, intermediate, splits[1])
            g.launch(ADD, [out, out, x, ("long", 256)])
        return g

    arguments = f"--moe-config rules/{place}tables"
    write(place + "bad/default_tiles", layers(8, 64, 128, 128, 4, 3).lines(), arguments)
    write(place + "bad/tiles_of_another_token_count", layers(40, 16, 64, 256, 4, 4).lines(), arguments)
    write(place + "good/tuned", layers(8, 16, 64, 256, 4, 4).lines(), arguments)
    write(place + "good/tuned_fewer_splits_where_k_is_short", layers(1, 16, 64, 256, 4, 4, splits=(4, 4)).lines(), arguments)


def pdl_lost() -> None:
    place = "pdl/pdl_lost/"

    def layers(kind: str, count: int = 4):
        """norm -> gemm -> down per layer, chained programmatically but for what `kind` does to the edge into down."""
        g = MemoryGraph()
        for layer in range(count):
            node = g.launch("norm", [], attribute=True)
            if layer:
                g.chain(node)
            if kind.startswith("join"):
                g.wait(1, 0)
                g.launch("shared", [], 1, attribute=False)
            g.chain(g.launch("gemm", [], attribute=True))
            if kind.startswith("join"):
                g.wait(0, 1)
            if kind == "memset":
                g.node("memset", kind="memset")
            plain = kind == "join, launched plainly" or (kind == "no attribute" and layer % 2 == 1)
            node = g.launch("down", [], attribute=not plain)
            if kind == "chained" or (kind == "no attribute" and layer % 2 == 0):
                g.chain(node)
            if kind == "join":  # a second one keeps its edge
                g.chain(g.launch("down", [], attribute=True))
        g.launch("head", [], attribute=False)
        return g

    def lines(g, replays=None):
        return g.lines(replays, facts_extra=("kernel_attributes",))

    # The join makes the edge into `down` a full one; a second `down` per layer keeps its own.
    g = layers("join")
    times, t = [], 0.0
    for node in range(len(g.nodes)):
        t += 0.2 if node in g.programmatic else 1.7
        times.append((node, 7 if g.nodes[node]["stream"] == 0 else 20, t, 4))
        t += 4
    write(place + "bad/join", lines(g, [replay(shifted(times, 1000 * i), 100 + i) for i in range(3)]))
    write(place + "bad/memset_between", lines(layers("memset")))
    write(place + "bad/attribute_missing", lines(layers("no attribute")))
    write(place + "good/chained", lines(layers("chained")))
    plain = lines(layers("join, launched plainly"))  # by a kernel whose code does not wait: it cannot be chained
    for line in plain:
        if line["type"] == "graph":
            next(function for function in line["functions"] if function["name"] == "down")["grid_dependency_wait"] = False
            line["facts"].append("kernel_images")
    write(place + "good/join_by_a_kernel_that_cannot_wait", plain)

    # An addition without the attribute joins two branches in the middle of a chain.
    for name, attribute in (("bad/join_breaks_a_chain", False), ("good/join_in_the_chain", True)):
        g = MemoryGraph()
        for layer in range(4):
            node = g.launch("norm", [], attribute=True)
            if layer:
                g.chain(node)
            g.wait(1, 0)
            g.launch("shared", [], 1, attribute=False)
            g.chain(g.launch("experts", [], attribute=True))
            g.chain(g.launch("finalize", [], attribute=True))
            g.wait(0, 1)
            node = g.launch("add", [], attribute=attribute)
            if attribute:
                g.chain(node)
        g.launch("head", [], attribute=False)
        chain = lines(g)
        for line in chain:
            if line["type"] == "graph":
                next(function for function in line["functions"] if function["name"] == "add")["grid_dependency_wait"] = True
                line["facts"].append("kernel_images")
        write(place + name, chain)

    # Captured nodes do not keep the attribute: behind a copy, the norm that is chained elsewhere has a full edge.
    g = MemoryGraph()
    for _ in range(3):
        for kernel in ("norm", "attention", "norm", "experts", "finalize"):
            node = g.launch(kernel, [])
            if node and g.nodes[node - 1]["kind"] == "kernel":
                g.chain(node)
        g.node("memcpy", kind="memcpy")
    g.launch("norm", [])
    write(place + "bad/copy_between", g.lines())

    # The same two kernels, chained on one stream and forked to another, where a launch cannot be serialised with its predecessor.
    g = MemoryGraph()
    for layer in range(4):
        node = g.launch("norm", [])
        if layer:
            g.chain(node)
        if layer % 2:
            g.wait(1, 0)
            g.launch("router", [], 1)
            g.chain(g.launch("experts", []))
            g.wait(0, 1)
        else:
            g.chain(g.launch("router", []))
    g.launch("head", [])
    write(place + "good/forked_elsewhere", g.lines())

    # A join whose kernel touches nothing of the other branch: another place would do.
    for name, uses in (("bad/join_too_early", False), ("good/join_is_needed", True)):
        g = MemoryGraph()
        x, y, shared, out = (g.buffer(1 << 16) for _ in range(4))
        for _ in range(3):
            g.launch(ADD, [out, shared, x, ("long", 256)], attribute=False)
            g.wait(1, 0)
            g.launch(ADD, [x, x, shared, ("long", 256)], 1, attribute=False)
            g.launch(ADD, [x, x, y, ("long", 256)], attribute=False)
            g.wait(0, 1)
            g.launch(ADD, [y, shared if uses else y, out, ("long", 256)], attribute=True)
        g.launch(ADD, [out, shared, x, ("long", 256)], attribute=False)
        write(place + name, lines(g))


def missed_overlap() -> None:
    place = "overlap/missed_overlap/"

    def layers(dependent: bool = False, grid: int = 16, dur: float = 10, opaque: bool = False, count: int = 4):
        """x -> {a1 -> a2 -> a3}, {b1 -> b2}, both -> join; on one stream."""
        g = MemoryGraph()
        x, a, b, c, d, e = (g.buffer(1 << 16) for _ in range(6))
        ops, t = [], 0.0

        def add(inputs, out):
            nonlocal t
            ops.append((g.launch(ADD, [*inputs, out, ("long", 1024)], grid=grid), 7, t, dur))
            t += dur + 0.5

        for _ in range(count):
            add([x, x], a)
            add([a, a], b)
            add([b, b], c)
            if opaque:
                ops.append((g.launch("unknown", []), 7, t, 1))
                t += 1.5
            add([c if dependent else x, x], d)
            add([d, d], e)
            add([c, e], x)
        add([x, x], a)
        return g.lines([replay(shifted(ops, 2000 * i), 100 + i) for i in range(3)])

    write(place + "bad/two_chains", layers())
    write(place + "good/one_needs_the_other", layers(dependent=True))
    write(place + "good/both_fill_the_device", layers(grid=264))
    write(place + "good/too_short", layers(dur=1))

    # A small kernel among large ones: what it leaves free is not worth a fork.
    g = MemoryGraph()
    x, a, b, c = (g.buffer(1 << 16) for _ in range(4))
    ops, t = [], 0.0
    for _ in range(4):
        for inputs, out, grid, dur in (([x, x], a, 528, 400), ([x, x], b, 528, 500), ([b, b], c, 8, 20), ([a, c], x, 528, 10)):
            ops.append((g.launch(ADD, [*inputs, out, ("long", 1024)], grid=grid), 7, t, dur))
            t += dur + 0.5
    ops.append((g.launch(ADD, [x, x, a, ("long", 1024)]), 7, t, 10))
    write(place + "good/small_kernel_among_large_ones", g.lines([replay(shifted(ops, 8000 * i), 100 + i) for i in range(3)]))


def overlap_does_not_pay() -> None:
    place = "overlap/overlap_does_not_pay/"

    def write_pair(name: str, slowed: float) -> None:
        """Two graphs: the branches one after the other, and beside each other, where each kernel takes `slowed` times as long."""
        lines = None
        for number, forked in ((0, False), (1, True)):
            g = Graph()
            ops, t = [], 0.0
            for _ in range(4):
                ops.append((g.node("rms_norm"), 7, t, 3))
                t += 4
                if forked:
                    g.wait(1, 0)
                start = end = t
                for kernels, stream in ((["gemm_a", "gemm_b"], 0), (["gemm_c", "gemm_d"], 1 if forked else 0)):
                    t = start if forked else t
                    for kernel in kernels:
                        dur = 20 * (slowed if forked else 1)
                        ops.append((g.node(kernel, stream, 528), 7 + 13 * stream, t, dur))
                        t += dur + 1
                    end = max(end, t)
                t = end
                if forked:
                    g.wait(0, 1)
            ops.append((g.node("head"), 7, t, 3))
            own = g.lines([replay(shifted(ops, 3000 * i), 100 * (number + 1) + i) for i in range(6)])
            for line in own:
                if "graph" in line:
                    line["graph"] = number
                if line["type"] == "graph":
                    line["info"]["name"] = "forked" if forked else "one_stream"
                if line["type"] == "replays":
                    line["base_ns"] = str(1000000 + 100000 * US * number)
            if lines is None:
                lines = own
            else:
                lines[-1:-1] = [line for line in own if line.get("graph") == number]
        lines[-1]["records"] = len(lines) - 1
        write(place + name, lines)

    write_pair("bad/as_slow_as_one_after_the_other", 2.05)
    write_pair("good/pays", 1.2)

    # No other graph to compare with: two branches of long kernels, with many blocks.
    g = Graph()
    ops, t = [], 0.0
    for _ in range(4):
        ops.append((g.node("rms_norm"), 7, t, 3))
        g.wait(1, 0)
        for kernels, stream in ((["gemm_a", "gemm_b"], 0), (["gemm_c", "gemm_d"], 1)):
            for i, kernel in enumerate(kernels):
                ops.append((g.node(kernel, stream, 2112), 7 + 13 * stream, t + 4 + 91 * i, 90))
        g.wait(0, 1)
        t += 190
    ops.append((g.node("head"), 7, t, 3))
    write(place + "bad/both_fill_the_device", g.lines([replay(shifted(ops, 3000 * i), 100 + i) for i in range(6)]))


def main() -> None:
    unordered_conflict()
    redundant_fill()
    constant_recomputed()
    untuned_launch_config()
    pdl_lost()
    missed_overlap()
    overlap_does_not_pay()
