"""The printed tables are, character for character, the ones users were shown."""

from __future__ import annotations

import textwrap

import pytest
from forked_python import run_python

from op_tools import results, tables

pytestmark = pytest.mark.unit


def text(block: str) -> str:
    return textwrap.dedent(block).strip("\n")


def tensor(name: str, shape: tuple[int, ...], stride: tuple[int, ...], pointer: int, **facts: object) -> dict:
    numel = 1
    for size in shape:
        numel *= size
    usual = {"dtype": "float32", "device": "npu:0", "requires_grad": False, "layout": "torch.strided"}
    return {
        "name": name,
        "shape": shape,
        "stride": stride,
        "numel": numel,
        "data_ptr": pointer,
        **usual,
        **facts,
    }


def test_capture_table_with_a_value() -> None:
    rows = [
        tensor("torch.Tensor.add inputs[0]", (1, 16384, 1), (16384, 1, 1), 20067180408320),
        {"name": "torch.Tensor.add inputs[1]", "value": "1e-05"},
        tensor("torch.Tensor.add outputs", (1, 16384, 1), (16384, 1, 1), 20067180474368),
    ]
    assert tables.describe_table(rows, capture=True) == text(
        """
        +----------------------------+--------+---------+-------+---------------+---------------+---------------+---------------+----------------+-------+
        |            name            | device |  dtype  | numel |     shape     |     stride    | requires_grad |     layout    |    data_ptr    | value |
        +----------------------------+--------+---------+-------+---------------+---------------+---------------+---------------+----------------+-------+
        | torch.Tensor.add inputs[0] | npu:0  | float32 | 16384 | (1, 16384, 1) | (16384, 1, 1) |     False     | torch.strided | 20067180408320 |       |
        | torch.Tensor.add inputs[1] |        |         |       |               |               |               |               |                | 1e-05 |
        |  torch.Tensor.add outputs  | npu:0  | float32 | 16384 | (1, 16384, 1) | (16384, 1, 1) |     False     | torch.strided | 20067180474368 |       |
        +----------------------------+--------+---------+-------+---------------+---------------+---------------+---------------+----------------+-------+
        """  # noqa: E501
    )


def test_description_without_values_has_no_value_column() -> None:
    rows = [
        tensor("torch.Tensor.max inputs", (16384,), (1,), 20067181255168, dtype="int64"),
        tensor("torch.Tensor.max outputs", (), (), 20067179832832, dtype="int64"),
    ]
    assert tables.describe_table(rows) == text(
        """
        +--------------------------+----------+--------+-------+-------+--------+---------------+---------------+----------------+
        |           name           |  shape   | stride | numel | dtype | device | requires_grad |     layout    |    data_ptr    |
        +--------------------------+----------+--------+-------+-------+--------+---------------+---------------+----------------+
        | torch.Tensor.max inputs  | (16384,) |  (1,)  | 16384 | int64 | npu:0  |     False     | torch.strided | 20067181255168 |
        | torch.Tensor.max outputs |    ()    |   ()   |   1   | int64 | npu:0  |     False     | torch.strided | 20067179832832 |
        +--------------------------+----------+--------+-------+-------+--------+---------------+---------------+----------------+
        """
    )


def compared(
    name: str, allclose: bool, absolute: float, relative: float, tolerance: float, info: str
) -> dict:
    return {
        "name": name,
        "allclose": allclose,
        "max_abs_diff": absolute,
        "max_relative_diff": relative,
        "atol": tolerance,
        "rtol": tolerance,
        "error_info": info,
    }


def test_comparison_table_pads_short_names_and_centres_long_ones() -> None:
    info = "Inconsistent dtypes: torch.bfloat16 torch.float64"
    rows = [
        compared("torch.nn.functional.linear input[0]", True, 0, 0, 1e-3, info),
        compared("torch.nn.functional.linear input[2]", True, 0, 0, 0, ""),
        compared("torch.nn.functional.linear output", False, 0.003906250, 0.083984375, 1e-3, info),
    ]
    assert tables.comparison_table(rows) == text(
        """
        +-------------------------------------+----------+--------------+-------------------+-------------+-------------+---------------------------------------------------+
        |                 name                | allclose | max_abs_diff | max_relative_diff |     atol    |     rtol    |                     error_info                    |
        +-------------------------------------+----------+--------------+-------------------+-------------+-------------+---------------------------------------------------+
        | torch.nn.functional.linear input[0] |   True   | 0.000000000  |    0.000000000    | 0.001000000 | 0.001000000 | Inconsistent dtypes: torch.bfloat16 torch.float64 |
        | torch.nn.functional.linear input[2] |   True   | 0.000000000  |    0.000000000    | 0.000000000 | 0.000000000 |                                                   |
        |  torch.nn.functional.linear output  |  False   | 0.003906250  |    0.083984375    | 0.001000000 | 0.001000000 | Inconsistent dtypes: torch.bfloat16 torch.float64 |
        +-------------------------------------+----------+--------------+-------------------+-------------+-------------+---------------------------------------------------+
        """  # noqa: E501
    )
    rows = [compared("torch.sub output", True, 0, 0, 1e-5, "")]
    assert tables.comparison_table(rows) == text(
        """
        +--------------------------------+----------+--------------+-------------------+-------------+-------------+------------+
        |              name              | allclose | max_abs_diff | max_relative_diff |     atol    |     rtol    | error_info |
        +--------------------------------+----------+--------------+-------------------+-------------+-------------+------------+
        | torch.sub output               |   True   | 0.000000000  |    0.000000000    | 0.000010000 | 0.000010000 |            |
        +--------------------------------+----------+--------------+-------------------+-------------+-------------+------------+
        """
    )


def test_summary_has_the_forward_id_first() -> None:
    info = "Inconsistent dtypes: torch.float32 torch.float64"
    rows = [
        {"forward_id": 359, **compared("torch.Tensor.max input", True, 0, 0, 1e-3, "")},
        {
            "forward_id": 364,
            **compared("torch.Tensor.scatter_add_ input[0]", False, 2.0625, 1.1804e-05, 1e-5, info),
        },
        {
            "forward_id": 364,
            **compared("torch.Tensor.scatter_add_ output", False, 2.0625, 1.1804e-05, 1e-5, info),
        },
    ]
    assert tables.comparison_table(rows) == text(
        """
        +------------+------------------------------------+----------+--------------+-------------------+-------------+-------------+--------------------------------------------------+
        | forward_id |                name                | allclose | max_abs_diff | max_relative_diff |     atol    |     rtol    |                    error_info                    |
        +------------+------------------------------------+----------+--------------+-------------------+-------------+-------------+--------------------------------------------------+
        |    359     |   torch.Tensor.max input           |   True   | 0.000000000  |    0.000000000    | 0.001000000 | 0.001000000 |                                                  |
        |    364     | torch.Tensor.scatter_add_ input[0] |  False   | 2.062500000  |    0.000011804    | 0.000010000 | 0.000010000 | Inconsistent dtypes: torch.float32 torch.float64 |
        |    364     |  torch.Tensor.scatter_add_ output  |  False   | 2.062500000  |    0.000011804    | 0.000010000 | 0.000010000 | Inconsistent dtypes: torch.float32 torch.float64 |
        +------------+------------------------------------+----------+--------------+-------------------+-------------+-------------+--------------------------------------------------+
        """  # noqa: E501
    )


def test_time_tables_leave_out_what_was_not_measured() -> None:
    name = "torch.nn.functional.normalize"
    forward = {"name": name, "forward_id": 1, "forward_elasped": 41.59259796, "unit": "ms"}
    assert tables.time_table([forward]) == text(
        """
        +-------------------------------+------------+-----------------+------+
        |              name             | forward_id | forward_elasped | unit |
        +-------------------------------+------------+-----------------+------+
        | torch.nn.functional.normalize |     1      |   41.59259796   |  ms  |
        +-------------------------------+------------+-----------------+------+
        """
    )
    backward = {"name": name, "forward_id": 1, "backward_elasped": 6.45375252, "unit": "ms"}
    assert tables.time_table([backward]) == text(
        """
        +-------------------------------+------------+------------------+------+
        |              name             | forward_id | backward_elasped | unit |
        +-------------------------------+------------+------------------+------+
        | torch.nn.functional.normalize |     1      |    6.45375252    |  ms  |
        +-------------------------------+------------+------------------+------+
        """
    )
    second = {"name": name, "forward_id": 2, "forward_elasped": 2.0608902, "backward_elasped": 5.55872917}
    assert tables.time_table([forward | backward, second]) == text(
        """
        +-------------------------------+------------+-----------------+------------------+------+
        |              name             | forward_id | forward_elasped | backward_elasped | unit |
        +-------------------------------+------------+-----------------+------------------+------+
        | torch.nn.functional.normalize |     1      |   41.59259796   |    6.45375252    |  ms  |
        | torch.nn.functional.normalize |     2      |    2.06089020   |    5.55872917    |  ms  |
        +-------------------------------+------------+-----------------+------------------+------+
        """
    )


def test_cast_table() -> None:
    config = "torch.float16->torch.float32,torch.bfloat16->torch.float32"
    rows = [
        ("input[0]", "torch.bfloat16 -> torch.float32"),
        ("output[0]", "torch.float32 -> torch.bfloat16"),
    ]
    table = tables.cast_table(
        [
            {"name": "torch.nn.functional.silu", "target": target, "action": action, "config": config}
            for target, action in rows
        ]
    )
    assert table == text(
        """
        +--------------------------+-----------+---------------------------------+------------------------------------------------------------+
        |           name           |   target  |              action             |                           config                           |
        +--------------------------+-----------+---------------------------------+------------------------------------------------------------+
        | torch.nn.functional.silu |  input[0] | torch.bfloat16 -> torch.float32 | torch.float16->torch.float32,torch.bfloat16->torch.float32 |
        | torch.nn.functional.silu | output[0] | torch.float32 -> torch.bfloat16 | torch.float16->torch.float32,torch.bfloat16->torch.float32 |
        +--------------------------+-----------+---------------------------------+------------------------------------------------------------+
        """  # noqa: E501
    )


def test_numbers_that_are_none_and_texts_with_line_breaks_keep_the_table_whole() -> None:
    table = tables.comparison_table([compared("x", False, float("nan"), float("inf"), 1e-3, "first\nsecond")])
    assert len(table.splitlines()) == 5
    row = table.splitlines()[3]
    assert "nan" in row and "inf" in row and "first second" in row


def test_columns_of_files_are_those_scripts_read() -> None:
    assert ",".join(results.COMPARISON_CSV_COLUMNS) == (
        "forward_id,name,allclose,cosine_similarity,max_abs_diff,max_relative_diff,atol,rtol,error_info"
    )
    assert ",".join(results.TIME_CSV_COLUMNS) == (
        "name,forward_id,forward_elasped,backward_elasped,unit,input,output,grad_inputs,grad_outputs"
    )


def test_the_table_library_is_loaded_only_for_a_table() -> None:
    program = (
        "import sys, op_tools.tables as t; before = 'prettytable' in sys.modules; t.time_table([]);"
        "print(before, 'prettytable' in sys.modules)"
    )
    done = run_python("-c", program, check=True)
    assert done.stdout.split() == ["False", "True"]
