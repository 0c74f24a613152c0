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
    require(version == 3, f"version {version} of the record")
    return {"slot": slot, "uuid": data[16:32], "sequence": sequence, "step": step, "previous": previous, "hash": stored,
            "overwriting": overwriting, "root": data[64:80], "trainer": json.loads(data[80:80 + trainer_bytes])}


class Store:
    """A store in `folders`, opened at its committed step; every byte is verified before it is given out."""

    def __init__(self, folders):
        self.folders = {}
        for folder in map(pathlib.Path, folders):
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            digest = manifest.pop("xxh3_128")
            line = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
            require(xxhash.xxh3_128_hexdigest(line.encode()) == digest, "manifest")
            require((manifest["format"], manifest["version"]) == ("forebay-store", 4), "version of the manifest")
            self.folders[manifest["stripe"]] = folder
            self.manifest = manifest
        self.weights = self.manifest["stripe_weights"]
        require(sorted(self.folders) == list(range(len(self.weights))), "a stripe is missing")
        self.w_bytes, self.state_bytes = {"bf16": (2, 10), "fp32": (4, 8)}[self.manifest["layout"]]
        self._deal_tiles()
        self.record = self._committed_record()
        self._check_tables()

    def _deal_tiles(self):
        self.tiles = []
        dealt = [0] * len(self.weights)
        in_all = 0
        for layer, spec in enumerate(self.manifest["layers"]):
            for first in range(0, spec["num_elems"], self.manifest["tile_elems"]):
                elems = min(self.manifest["tile_elems"], spec["num_elems"] - first)
                in_all += elems
                lag = [dealt[s] * sum(self.weights) - in_all * weight for s, weight in enumerate(self.weights)]
                stripe = lag.index(min(lag))
                self.tiles.append({"number": len(self.tiles), "layer": layer, "first": first, "elems": elems, "stripe": stripe,
                                   "before": dealt[stripe]})
                dealt[stripe] += elems
        self.dealt = dealt

    def _committed_record(self):
        newest = None
        for stripe, folder in self.folders.items():
            data = (folder / "commit.fbs").read_bytes()
            require(len(data) == 2 * RECORD_BYTES, f"size of the records of stripe {stripe}")
            for copy in (data[:RECORD_BYTES], data[RECORD_BYTES:]):
                record = parse_record(copy)
                if record and (newest is None or record["sequence"] > newest["sequence"]):
                    newest = record
        require(newest is not None and not newest["overwriting"], "no committed step")
        require(newest["uuid"].hex() == self.manifest["uuid"], "uuid of the record")
        return newest

    def _check_tables(self):
        """Reads the seals of all tiles of the committed slot."""
        roots = b""
        self.sums = {}
        for stripe in range(len(self.weights)):
            tiles = [tile for tile in self.tiles if tile["stripe"] == stripe]
            if not tiles:
                continue
            planes = 4 if self.manifest["layout"] == "bf16" else 3
            size = RECORD_BYTES + sum(64 + 8 * planes * round_up(tile["elems"], PART_ELEMS) // PART_ELEMS for tile in tiles)
            size = round_up(size + 64, 4096)
            data = (self.folders[stripe] / "seals.fbs").read_bytes()
            require(len(data) == self.manifest["slots"] * 2 * size, f"size of the tables of stripe {stripe}")
            table = data[2 * size * self.record["slot"]:][:size]
            head = parse_record(table[:RECORD_BYTES])
            require(head and (head["slot"], head["root"]) == (self.record["slot"], self.record["root"]), "record of the table")
            require(xxhash.xxh3_128_digest(table[RECORD_BYTES:-16]) == table[-16:], f"table of stripe {stripe}")
            magic, version, number, slot, zero = struct.unpack_from("<8sIIII", table, size - 64)
            require((magic, version, number, slot, zero) == (b"FBSEALED", 1, stripe, self.record["slot"], 0), "trailer")
            require(table[-40:-24] == self.record["uuid"], "uuid of the trailer")
            roots += table[-16:]
            self._read_seals(tiles, table, planes)
        require(xxhash.xxh3_128_digest(roots) == self.record["root"], "root of the record")

    def _read_seals(self, tiles, table, planes):
        at = RECORD_BYTES
        for tile in tiles:
            fields = struct.unpack_from("<4sIIIqqqqQ8s", table, at)
            parts = round_up(tile["elems"], PART_ELEMS) // PART_ELEMS
            sums = table[at + 64: at + 64 + 8 * planes * parts]
            expected = (b"FBTS", tile["number"], tile["layer"], self.record["slot"], tile["first"], tile["elems"],
                        self._offset(tile, self.w_bytes), self._offset(tile, self.state_bytes))
            require(fields[:8] == expected, f"seal of tile {tile['number']}: {fields}")
            require(xxhash.xxh3_128_digest(table[at: at + 56] + sums)[:8] == fields[9], "hash of a seal")
            self.sums[tile["number"]] = np.frombuffer(sums, "<u8").reshape(planes, parts)
            at += 64 + len(sums)

    def _offset(self, tile, elem_bytes):
        return (self.record["slot"] * self.dealt[tile["stripe"]] + tile["before"]) * elem_bytes

    def _planes(self, tile):
        """w16 and r16 (or fp32 weights), m, v of a tile as arrays; Damaged where one is not what was written."""
        def read(name, elem_bytes):
            with open(self.folders[tile["stripe"]] / name, "rb") as file:
                file.seek(self._offset(tile, elem_bytes))
                return file.read(elem_bytes * tile["elems"])

        n = tile["elems"]
        weights, state = read("weights.fbs", self.w_bytes), read("state.fbs", self.state_bytes)
        if self.manifest["layout"] == "bf16":
            planes = [np.frombuffer(weights, "<u2"), np.frombuffer(state[:2 * n], "<i2")]
        else:
            planes = [np.frombuffer(weights, "<f4")]
        planes += [np.frombuffer(state[-8 * n: -4 * n], "<f4"), np.frombuffer(state[-4 * n:], "<f4")]
        for number, plane in enumerate(planes):
            for part, first in enumerate(range(0, n, PART_ELEMS)):
                digest = xxhash.xxh3_64_intdigest(plane[first: first + PART_ELEMS].tobytes())
                require(digest == self.sums[tile["number"]][number][part], f"tile {tile['number']}, plane {number}")
        return planes

    def tensors(self):
        """{name: (shape, weights as stored, fp32 master, m, v)}"""
        tensors = {}
        for number, layer in enumerate(self.manifest["layers"]):
            tiles = [self._planes(tile) for tile in self.tiles if tile["layer"] == number]
            flat = [np.concatenate(planes) for planes in zip(*tiles, strict=True)]
            if self.manifest["layout"] == "bf16":
                master = (flat[0].astype(np.int64) * 65536 + flat[1]).astype(np.uint32).view(np.float32)
            else:
                master = flat[0]
            used = np.zeros(layer["num_elems"], bool)
            for spec in layer["tensors"]:
                require(spec["offset_elems"] % TENSOR_ALIGN == 0, "offset of a tensor")
                where = slice(spec["offset_elems"], spec["offset_elems"] + int(np.prod(spec["shape"])))
                used[where] = True
                tensors[spec["name"]] = (spec["shape"], flat[0][where], master[where], flat[-2][where], flat[-1][where])
            require(layer["num_elems"] % 2048 == 0 and not flat[0][~used].any(), "what pads a layer")
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
