"""Tables of text: what is read, which columns are taken, and mistakes said with their line."""

import csv
import json

import pytest

from snugfit.errors import InputError
from snugfit.workloads.text.columns import label_column, prompt_columns, prompts_of, text_column
from snugfit.workloads.text.tables import Table, read_tables, texts_of


def read(kind, path):
    return read_tables(f"{kind}:{path}", download=False)


def columns(table):
    return {name: list(values) for name, values in table.columns.items()}


def refused(spec):
    with pytest.raises(InputError) as caught:
        read_tables(spec, download=False)
    return str(caught.value)


@pytest.mark.parametrize("between", [",", ";", "\t", "|"])
def test_what_stands_between_fields_is_seen_in_the_first_line(tmp_path, between):
    rows = [["text", "label"], ["one, two; three | four\tfive", "x"], ["", "y"]]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=between).writerows(rows)
    assert columns(read("csv", tmp_path / "a.csv")["train"]) == {"text": [rows[1][0], ""], "label": ["x", "y"]}


def test_a_file_of_one_column_has_commas(tmp_path):
    (tmp_path / "a.csv").write_text('text\n"a; b"\nc; d\n')
    assert columns(read("csv", tmp_path / "a.csv")["train"]) == {"text": ["a; b", "c; d"]}


def test_csv_with_quotes_line_breaks_and_a_byte_order_mark(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text('\ufefftext,label\n"one, two\nthree",x\n\n"say ""hi""",y\n', encoding="utf-8")
    table = read("csv", file)["train"]
    assert columns(table) == {"text": ["one, two\nthree", 'say "hi"'], "label": ["x", "y"]}
    assert [table.where(row) for row in range(2)] == ["line 2", "line 5"]
    (tmp_path / "a.tsv").write_text("text\tlabel\na, b\t1\n")
    assert columns(read("csv", tmp_path / "a.tsv")["train"]) == {"text": ["a, b"], "label": ["1"]}


def test_long_fields_are_read_and_the_library_is_left_as_it_was(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f"text,label\n{'word ' * 50000},x\n")
    assert len(columns(read("csv", tmp_path / "a.csv")["train"])["text"][0]) == 250000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("csv", "text,label\na,x\nb,y,z\n", "line 3: 3 fields, and the header has 2 (text, label)"),
        ("csv", 'text,label\na,x\n"b" c,y\n', "line 3: ',' expected after '\"'"),
        (
            "csv",
            "text;label\na,b;x\nb;y;z\n",
            "line 3: 3 fields, and the header has 2 (text, label). Put texts with semic",
        ),
        ("csv", "", "must name each column once; it is empty|has no rows"),
        ("jsonl", '{"text": "a"}\n{"text": \n', "line 2 is no JSON"),
        ("jsonl", '{"text": "a"}\n\n["b"]\n', "line 3 is a list"),
        ("jsonl", "\n", "has no rows"),
        ("jsonl", "[]", "has no rows"),
        ("jsonl", '[{"text": "a"}, 3]', "row 2 is a int"),
        ("jsonl", '[{"text": "a"},\n {"text": ]', "is no JSON: Expecting value: line 2"),
    ],
)
def test_mistakes_are_said_with_their_line(tmp_path, kind, text, says):
    file = tmp_path / f"a.{kind}"
    file.write_text(text)
    message = refused(f"{kind}:{file}")
    assert any(part in message for part in says.split("|")) and str(file) in message


def test_one_list_of_objects_is_a_table_too(tmp_path):
    (tmp_path / "a.json").write_text('\n[\n{"text": "a"},\n{"text": "b", "label": 1}]')
    table = read("jsonl", tmp_path / "a.json")["train"]
    assert columns(table) == {"text": ["a", "b"], "label": [None, 1]} and table.where(1) == "row 2"


def test_a_folder_has_a_file_for_each_part(tmp_path):
    for name, count in (("train", 3), ("dev", 2), ("test", 1)):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n' * count)
    tables = read("jsonl", tmp_path)
    assert {part: len(table) for part, table in tables.items()} == {"train": 3, "validation": 2, "test": 1}


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [0, 1]}), tmp_path / "a.parquet")
    table = read("parquet", tmp_path / "a.parquet")["train"]
    assert columns(table) == {"text": ["a", "b"], "label": [0, 1]} and table.where(1) == "row 2"


def test_data_of_the_hub_from_a_local_folder_and_without_network(tmp_path):
    pytest.importorskip("datasets")
    for part, count in (("train", 4), ("test", 2)):
        lines = [json.dumps({"text": f"{part} {row}", "label": row % 2}) for row in range(count)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(lines))
    tables = read("hf", tmp_path)
    assert {part: len(table) for part, table in tables.items()} == {"train": 4, "test": 2}
    assert columns(tables["test"]) == {"text": ["test 0", "test 1"], "label": [0, 1]}
    message = refused("hf:nobody/no-such-data")
    assert "cannot be loaded" in message and "--download" in message


def table(**columns):
    return Table(name="data", columns=columns)


def test_columns_are_found_by_name_or_named():
    assert text_column(table(id=[1], Review=["a"], label=[0]), None) == "Review"
    assert label_column(table(id=[1], Review=["a"], Sentiment=[0]), None) == "Sentiment"
    assert text_column(table(text=["a"], other=["b"]), "other") == "other"
    with pytest.raises(InputError, match=r"no column 'txet'; did you mean 'text'\? its columns: text, id"):
        text_column(table(text=["a"], id=[1]), "txet")
    with pytest.raises(InputError, match=r"looks like the label .*its columns: text, id\. Name it with --label-column"):
        label_column(table(text=["a"], id=[1]), None)


def test_prompts_are_found_in_pairs():
    pair = table(instruction=["a"], response=["b"], text=["ab"])
    assert prompt_columns(pair, None, None) == ("instruction", "response")
    assert prompt_columns(pair, None, "text") is None
    assert prompt_columns(pair, "text", None) == ("text", "response")
    assert prompt_columns(pair, "instruction", "text") == ("instruction", "text")
    assert prompt_columns(table(question=["a"], text=["b"]), None, None) is None
    assert prompt_columns(table(question=["a"], text=["b"]), "question", None) == ("question", "text")
    with pytest.raises(InputError, match="looks like the completion"):
        prompt_columns(table(prompt=["a"], id=[1]), "prompt", None)


def test_rows_without_text_are_counted_and_the_first_is_named():
    rows = Table(name="a.csv", columns={"text": ["a", " ", "b", None]}, lines=[2, 3, 4, 6])
    with pytest.raises(InputError, match=r"2 of 4 rows have no text in column 'text' \(first: line 3\)"):
        texts_of(rows, "text")
    with pytest.raises(InputError, match=r"row 2: text is 5 \(int\), not text"):
        texts_of(table(text=["a", 5]), "text")
    assert texts_of(table(text=["a", ""]), "text", empty=True) == ["a", ""]


def test_what_an_instruction_is_about_is_part_of_its_prompt():
    alpaca = table(instruction=["add", "sing", "hum"], input=["1 2", "", None], output=["3", "la", "mm"])
    assert list(prompts_of(alpaca, "instruction")) == ["add\n1 2", "sing", "hum"]
    assert list(prompts_of(table(prompt=["add", ""], input=["1 2", "x"]), "prompt")) == ["add", ""]
