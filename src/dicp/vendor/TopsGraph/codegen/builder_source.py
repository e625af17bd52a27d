"""A graph of the builder's operators as a C++ program: `build_sample` builds it, `compile`, `load` and `run` use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dicp.errors import InvalidGraphError
from dicp.vendor.TopsGraph.codegen.dtypes import NAMES, integer, values_of
from dicp.vendor.TopsGraph.operators import KINDS, TopsOperator

__all__ = ["BuilderSource"]

_HEAD = """\
#include "dtu/hlir_builder/hlir_builder.h"

#include "dtu/hlir_builder/hlir_builder_client_ops.h"
#include "tops/tops_runtime.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

std::shared_ptr<builder::Builder> build_sample();

std::shared_ptr<builder::Builder> build_sample() {
    auto hlir_builder = std::make_shared<builder::Builder>();
    hlir_builder->SetShapeInference(true);
"""
_TAIL = """\
    return hlir_builder;
}

namespace {

topsExecutable_t executable = nullptr;

int save(const std::vector<char>& binary, const char* path) {
    std::FILE* file = std::fopen(path, "wb");
    if (file == nullptr) return 1;
    const bool whole = std::fwrite(binary.data(), 1, binary.size(), file) == binary.size();
    return std::fclose(file) == 0 && whole ? 0 : 1;
}

std::vector<char> saved(const char* path) {
    std::vector<char> binary;
    std::FILE* file = std::fopen(path, "rb");
    if (file == nullptr) return binary;
    char part[4096];
    for (size_t read; (read = std::fread(part, 1, sizeof part, file)) > 0;) binary.insert(binary.end(), part, part + read);
    std::fclose(file);
    return binary;
}

}  // namespace

extern "C" {

// Compiles the graph into a file; each of these functions gives 0, or what failed.
__attribute__((visibility("default"))) int compile(const char* path, int option_count, const char** options) {
    const auto module = build_sample()->GetModule();
    topsgraphProgram program = nullptr;
    if (topsgraphCreateProgramFromModule(&program, module.get()) != 0) return 1;
    int failed = topsgraphCompileProgram(program, option_count, options) != 0 ? 2 : 0;
    uint64_t size = 0;
    if (failed == 0 && topsgraphGetBinSize(program, &size) != 0) failed = 3;
    std::vector<char> binary(size);
    if (failed == 0 && topsgraphGetBin(program, binary.data()) != 0) failed = 4;
    topsgraphDestroyProgram(&program);
    return failed != 0 ? failed : save(binary, path) != 0 ? 5 : 0;
}

__attribute__((visibility("default"))) int load(const char* path, int device) {
    const std::vector<char> binary = saved(path);
    if (binary.empty()) return 1;
    if (topsSetDevice(device) != 0) return 2;
    return topsCreateExecutable(&executable, binary.data(), binary.size()) != 0 ? 3 : 0;
}

// Of pointers to device memory.
__attribute__((visibility("default"))) int run(void** inputs, void** outputs, void* stream) {
    if (executable == nullptr) return 1;
    return topsLaunchExecutable(executable, nullptr, inputs, INPUTS, nullptr, nullptr, outputs, OUTPUTS, nullptr, nullptr,
                                static_cast<topsStream_t>(stream)) != 0 ? 2 : 0;
}

}  // extern "C"
"""


class BuilderSource:
    """Writes the program of one graph."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.lines: list[str] = []
        self.types: dict[str, str] = {}
        """Declared types: the name of each by how it is made."""
        self.names: dict[Node, str] = {}

    def codegen(self) -> str:
        """The source."""
        inputs = 0
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                inputs += 1
                self._define(
                    node, f"hlir_builder->CreateInput({self._type(node.meta['val'])})", str(node.target)
                )
            elif node.op == "call_function":
                self._call(node)
        outputs: Any = self.gm.graph.output_node().args[0]
        listed = ", ".join(self._output(node) for node in outputs)
        self.lines.append(f"hlir_builder->SetOutput(std::vector<builder::Op>{{{listed}}});")
        body = "".join(f"    {line}\n" for line in self.lines)
        tail = _TAIL.replace("INPUTS", str(inputs)).replace("OUTPUTS", str(len(outputs)))
        return _HEAD + body + tail

    def _define(self, node: Node, expression: str, comment: str = "") -> None:
        name = self.names[node] = f"op{len(self.names)}"
        said = f"  // {comment}" if comment else ""
        self.lines.append(f"builder::Op {name} = {expression};{said}")

    def _call(self, node: Node) -> None:
        operator = node.target
        if not isinstance(operator, TopsOperator):
            raise InvalidGraphError(f"{node.format_node()}: not an operator of the builder")
        if operator.name == "Const":
            self._constant(node)
            return
        texts = ["hlir_builder"] if operator.kinds[0] not in ("op", "ops") else []
        values = iter(node.args)
        for kind in operator.kinds:
            texts.append(
                self._type(node.meta["val"]) if kind == "type" else self._argument(next(values), kind)
            )
        self._define(node, f"builder::{operator.name}({', '.join(texts)})")
        for name, value in operator.attributes:
            self.lines.append(
                f"{self.names[node]}.SetAttribute({json.dumps(name)}, builder::Attribute({json.dumps(value)}));"
            )

    def _constant(self, node: Node) -> None:
        value: Any = node.args[0]
        kind, elements = values_of(value, node.meta["val"].dtype)
        data = f"data{len(self.names)}"
        self.lines.append(f"{kind} {data}[] = {{{', '.join(elements)}}};")
        self._define(
            node, f"builder::Const(hlir_builder, static_cast<void*>({data}), {self._type(node.meta['val'])})"
        )

    def _output(self, node: Node) -> str:
        if node.op != "placeholder":
            return self.names[node]
        # The program's outputs are memory of their own.
        name = f"{self.names[node]}_output"
        line = f"builder::Op {name} = builder::Reshape({self.names[node]}, {self._type(node.meta['val'])});"
        if line not in self.lines:
            self.lines.append(line)
        return name

    def _type(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            element = f"builder::PrimitiveType::{NAMES[value.dtype]}()"
            made = f"{_ints(value.shape)}, {element}" if value.dim() else element
        else:
            shapes = ", ".join(_ints(item.shape) for item in value)
            elements = ", ".join(f"builder::PrimitiveType::{NAMES[item.dtype]}()" for item in value)
            made = f"std::vector<std::vector<int64_t>>{{{shapes}}}, std::vector<builder::PrimitiveType>{{{elements}}}"
        if made not in self.types:
            self.types[made] = f"type{len(self.types)}"
            self.lines.append(f"const builder::Type {self.types[made]}({made});")
        return self.types[made]

    def _argument(self, value: Any, kind: str) -> str:
        match kind:
            case "op":
                return self.names[value]
            case "ops":
                return f"std::vector<builder::Op>{{{', '.join(self.names[item] for item in value)}}}"
            case "bool":
                return "true" if value else "false"
            case "int":
                return integer(int(value))
            case "float":
                return repr(float(value))
            case "text":
                return json.dumps(value)
            case "ints":
                return _ints(value)
            case "bools":
                return f"std::vector<bool>{{{', '.join('true' if item else 'false' for item in value)}}}"
            case "texts":
                return f"std::vector<const char*>{{{', '.join(map(json.dumps, value))}}}"
            case "pairs":
                return f"{KINDS[kind]}{{{', '.join(map(_ints, value))}}}"
        parts = [integer(item) if isinstance(item, int) else _ints(item) for item in value]
        return f"builder::{KINDS[kind]}({', '.join(parts)})"


def _ints(values: Sequence[int]) -> str:
    return f"std::vector<int64_t>{{{', '.join(integer(int(value)) for value in values)}}}"
