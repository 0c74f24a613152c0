"""A second reader of a run's store, written from docs/formats.md alone: it shares no code with the program, so that whoever
reads the document can read a store."""

import json
import pathlib
import struct

import numpy as np
import xxhash

PART_ELEMS = 65536
TENSOR_ALIGN = 64
RECORD_BYTES = 4096


class Damaged(Exception):
    pass


def require(condition, what):
    if not condition:
        raise Damaged(what)


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def parse_record(data):
    """The commit record in 4096 bytes; None when it was never written or is torn."""
    (stored,) = struct.unpack_from("<Q", data, 4088)
    if data[:8] != b"FBCOMMIT" or xxhash.xxh3_64_intdigest(data[:4088]) != stored:
        return None
    version, slot = struct.unpack_from("<II", data, 8)
    sequence, step, previous, trainer_bytes, overwriting = struct.unpack_from("<QqQII", data, 32)
    require(version == 4, f"version {version} of the record")
    return {"slot": slot, "uuid": data[16:32], "sequence": sequence, "step": step, "previous": previous, "hash": stored,
            "overwriting": overwriting, "root": data[64:80], "manifest": struct.unpack_from("<Q", data, 80)[0],
            "trainer": json.loads(data[88:88 + trainer_bytes])}


def planes_of(layout, moments, small):
    """(name, dtype, elements for each of them) of the planes of a tile: the weights, then the state."""
    lossy = layout.endswith("-moments")
    if layout == "fp32":
        planes = [("w", "<f4", 1)]
    elif layout == "fp16":
        planes = [("w", "<f2", 1), ("master", "<f4", 1)]
    else:
        planes = [("w", "<u2", 1), ("r16", "<i2", 1)]
    if not lossy or small:
        return planes + [(name, "<f4", 1) for name in moments]
    if layout == "bf16-moments":
        return planes + [(name, "<u2", 1) for name in moments]
    codes = {"m": "<i1", "v": "<u1"}
    return planes + [(name, codes[name], 1) for name in moments] + [(f"{name}_scale", "<u2", 32) for name in moments]


def bytes_of(planes, elems):
    return sum(elems // per * np.dtype(dtype).itemsize for _, dtype, per in planes)


class Store:
    """A store in `folders`, opened at its committed step; every byte is verified before it is given out."""

    def __init__(self, folders):
        self.folders = {}
        for folder in map(pathlib.Path, folders):
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            require((folder / "copy/manifest.json").read_text(encoding="utf-8")
                    == (folder / "manifest.json").read_text(encoding="utf-8"), "copy of the manifest")
            digest = manifest.pop("xxh3_128")
            line = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
            require(xxhash.xxh3_128_hexdigest(line.encode()) == digest, "manifest")
            require((manifest["format"], manifest["version"]) == ("forebay-store", 6), "version of the manifest")
            self.folders[manifest["stripe"]] = folder
            self.manifest = manifest
        self.weights = self.manifest["stripe_weights"]
        require(sorted(self.folders) == list(range(len(self.weights))), "a stripe is missing")
        self._deal_tiles()
        self.record = self._committed_record()
        self._check_tables()

    def _deal_tiles(self):
        self.tiles = []
        dealt = [0] * len(self.weights)
        areas = {"weights": [0] * len(self.weights), "state": [0] * len(self.weights)}
        in_all = 0
        for layer, spec in enumerate(self.manifest["layers"]):
            for first, elems, small in self._cuts(spec):
                in_all += elems
                lag = [dealt[s] * sum(self.weights) - in_all * weight for s, weight in enumerate(self.weights)]
                stripe = lag.index(min(lag))
                planes = planes_of(self.manifest["layout"], self.manifest["moments"], small)
                w_bytes, state_bytes = bytes_of(planes[:1], elems), round_up(bytes_of(planes[1:], elems), 4096)
                self.tiles.append({"number": len(self.tiles), "layer": layer, "first": first, "elems": elems, "stripe": stripe,
                                   "planes": planes, "weights": (areas["weights"][stripe], w_bytes),
                                   "state": (areas["state"][stripe], state_bytes)})
                dealt[stripe] += elems
                areas["weights"][stripe] += w_bytes
                areas["state"][stripe] += state_bytes
        self.areas = areas

    def _cuts(self, layer):
        """(first element, elements, whether of small tensors in a lossy layout) of a layer's tiles."""
        sections = [(0, layer["num_elems"], False)]
        if self.manifest["layout"].endswith("-moments"):
            large = [spec for spec in layer["tensors"] if len(spec["shape"]) > 1]
            end = round_up(max((spec["offset_elems"] + int(np.prod(spec["shape"])) for spec in large), default=0), 2048)
            sections = [(0, end, False), (end, layer["num_elems"], True)]
        for begin, end, small in sections:
            for first in range(begin, end, self.manifest["tile_elems"]):
                yield first, min(self.manifest["tile_elems"], end - first), small

    def _committed_record(self):
        newest = None
        for stripe, folder in self.folders.items():
            for name in ("commit.fbs", "copy/commit.fbs"):
                data = (folder / name).read_bytes()
                require(len(data) == 2 * RECORD_BYTES and not any(data[RECORD_BYTES:]), f"size of a record of stripe {stripe}")
                record = parse_record(data[:RECORD_BYTES])
                if record and (newest is None or record["sequence"] > newest["sequence"]):
                    newest = record
        require(newest is not None and not newest["overwriting"], "no committed step")
        require(newest["uuid"].hex() == self.manifest["uuid"], "uuid of the record")
        # As stripe 0 has it; the digest of the manifest is the last of its keys.
        manifest = dict(self.manifest, stripe=0)
        line = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
        manifest["xxh3_128"] = xxhash.xxh3_128_hexdigest(line.encode())
        text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        require(xxhash.xxh3_64_intdigest(text.encode()) == newest["manifest"], "hash of the manifest")
        return newest

    def _check_tables(self):
        """Reads the seals of all tiles of the committed slot."""
        roots = b""
        self.sums = {}
        for stripe in range(len(self.weights)):
            tiles = [tile for tile in self.tiles if tile["stripe"] == stripe]
            if not tiles:
                continue
            size = RECORD_BYTES + sum(64 + 8 * len(tile["planes"]) * round_up(tile["elems"], PART_ELEMS) // PART_ELEMS
                                      for tile in tiles)
            size = round_up(size + 64, 4096)
            data = (self.folders[stripe] / "seals.fbs").read_bytes()
            require(len(data) == self.manifest["slots"] * size, f"size of the tables of stripe {stripe}")
            table = data[size * self.record["slot"]:][:size]
            copy = (self.folders[stripe] / "copy/seals.fbs").read_bytes()
            require(copy[size * self.record["slot"]:][:size] == table, f"copy of the table of stripe {stripe}")
            head = parse_record(table[:RECORD_BYTES])
            require(head and (head["slot"], head["root"]) == (self.record["slot"], self.record["root"]), "record of the table")
            require(xxhash.xxh3_128_digest(table[RECORD_BYTES:-16]) == table[-16:], f"table of stripe {stripe}")
            magic, version, number, slot, zero = struct.unpack_from("<8sIIII", table, size - 64)
            require((magic, version, number, slot, zero) == (b"FBSEALED", 1, stripe, self.record["slot"], 0), "trailer")
            require(table[-40:-24] == self.record["uuid"], "uuid of the trailer")
            roots += table[-16:]
            self._read_seals(tiles, table)
        require(xxhash.xxh3_128_digest(roots) == self.record["root"], "root of the record")

    def _read_seals(self, tiles, table):
        at = RECORD_BYTES
        for tile in tiles:
            fields = struct.unpack_from("<4sIIIqqqqQ8s", table, at)
            parts, planes = round_up(tile["elems"], PART_ELEMS) // PART_ELEMS, len(tile["planes"])
            sums = table[at + 64: at + 64 + 8 * planes * parts]
            expected = (b"FBTS", tile["number"], tile["layer"], self.record["slot"], tile["first"], tile["elems"],
                        self._offset(tile, "weights"), self._offset(tile, "state"))
            require(fields[:8] == expected, f"seal of tile {tile['number']}: {fields}")
            require(xxhash.xxh3_128_digest(table[at: at + 56] + sums)[:8] == fields[9], "hash of a seal")
            self.sums[tile["number"]] = np.frombuffer(sums, "<u8").reshape(planes, parts)
            at += 64 + len(sums)

    def _offset(self, tile, half):
        return self.record["slot"] * self.areas[half][tile["stripe"]] + tile[half][0]

    def _planes(self, tile):
        """{name: array} of a tile; Damaged where one is not what was written."""
        def read(half):
            if tile[half][1] == 0:
                return b""
            with open(self.folders[tile["stripe"]] / f"{half}.fbs", "rb") as file:
                file.seek(self._offset(tile, half))
                return file.read(tile[half][1])

        planes, at = {}, 0
        state = read("state")
        for number, (name, dtype, per) in enumerate(tile["planes"]):
            size = tile["elems"] // per * np.dtype(dtype).itemsize
            planes[name] = np.frombuffer(read("weights") if number == 0 else state[at: at + size], dtype)
            at += 0 if number == 0 else size
            for part, first in enumerate(range(0, tile["elems"] // per, PART_ELEMS // per)):
                digest = xxhash.xxh3_64_intdigest(planes[name][first: first + PART_ELEMS // per].tobytes())
                require(digest == self.sums[tile["number"]][number][part], f"tile {tile['number']}, plane {number}")
        require(not any(state[at:]), f"what follows the state of tile {tile['number']}")
        return planes

    def tensors(self):
        """{name: (shape, weights as stored, fp32 master, moments as stored...)}"""
        tensors = {}
        for number, layer in enumerate(self.manifest["layers"]):
            tiles = [(tile, self._planes(tile)) for tile in self.tiles if tile["layer"] == number]
            used = np.zeros(layer["num_elems"], bool)
            for spec in layer["tensors"]:
                require(spec["offset_elems"] % TENSOR_ALIGN == 0, "offset of a tensor")
                begin, end = spec["offset_elems"], spec["offset_elems"] + int(np.prod(spec["shape"]))
                used[begin:end] = True
                parts = {}
                for tile, planes in tiles:
                    first, last = max(begin, tile["first"]), min(end, tile["first"] + tile["elems"])
                    for name, _, per in tile["planes"] if first < last else []:
                        cut = planes[name][(first - tile["first"]) // per: -(-(last - tile["first"]) // per)]
                        parts.setdefault(name, []).append(cut)
                flat = {name: np.concatenate(cuts) for name, cuts in parts.items()}
                if "r16" in flat:
                    master = (flat["w"].astype(np.int64) * 65536 + flat["r16"]).astype(np.uint32).view(np.float32)
                else:
                    master = flat.get("master", flat["w"])
                moments = [flat[name] for name in ("m", "v", "m_scale", "v_scale") if name in flat]
                tensors[spec["name"]] = (spec["shape"], flat["w"], master, *moments)
            weights = np.concatenate([planes["w"] for _, planes in tiles])
            require(layer["num_elems"] % 2048 == 0 and not weights[~used].any(), "what pads a layer")
        return tensors

    def digest(self):
        """That of 'forebay inspect --hash'."""
        digest = xxhash.xxh3_128()
        for name, (shape, _, *planes) in sorted(self.tensors().items()):
            digest.update(struct.pack("<q", len(name)) + name.encode())
            digest.update(struct.pack(f"<q{len(shape)}q", len(shape), *shape))
            for plane in planes:
                digest.update(plane.tobytes())
        digest.update(struct.pack("<q", self.record["step"]))
        return digest.hexdigest()
