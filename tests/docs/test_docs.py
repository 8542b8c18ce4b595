import ast
import importlib.util
import itertools
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

import gdsload
import gdsload.transforms
from gdsload.shards.gather_host import one_thread
from tools.docs_site import write_llms

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(page):
    """The anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_documents_parses(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block)


def test_every_public_name_is_in_the_reference():
    """By itself, or with all others of its module."""
    text = (ROOT / "docs/reference.md").read_text()
    shown = set(re.findall(r"^\.\. auto(?:class|function):: (?:[\w.]+[.:])?(\w+)$", text, re.MULTILINE))
    whole = set(re.findall(r"^\.\. automodule:: (\S+)\n   :members:$", text, re.MULTILINE))
    public = {name: getattr(gdsload, name) for name in gdsload.__all__ if not name.startswith("__")}
    assert [name for name, found in public.items() if name not in shown and found.__module__ not in whole] == []
    assert "gdsload.transforms" in whole


def test_the_first_two_commands_of_the_readme_are_the_main_job_and_the_tests():
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert [block.strip() for block in blocks[:2]] == ["make demo", "make test"]


def test_the_recipes_by_class_split_and_balance(tmp_path):
    pytest.importorskip("sklearn", reason="one of the recipes is scikit-learn's")
    sizes = {"cat": 700, "dog": 250, "owl": 50}
    with gdsload.ShardWriter(tmp_path / "d") as writer:
        for label, size in sizes.items():
            for _ in range(size):
                writer.write({"label": label})
    made = run_recipe("Classes", "import numpy", dataset=gdsload.ShardDataset(tmp_path / "d"))
    assert sorted([*made["train"], *made["validation"]]) == list(range(1000))
    assert Counter(made["labels"][made["validation"]].tolist()) == {"cat": 70, "dog": 25, "owl": 5}
    drawn = Counter(label for batch in made["loader"] for label in batch["label"])
    assert drawn.total() == 900
    assert all(abs(drawn[label] - 300) < 60 for label in sizes)  # four times the standard deviation
    made["loader"].close()


def run_recipe(heading, begin, **names):
    """Run the block of code under a heading of the page on training that begins with a line; the names that it has."""
    text = (ROOT / "docs/train.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (recipe,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if block.startswith(begin))
    made = {"gdsload": gdsload, "torch": torch, **names}
    exec(recipe, made)
    return made


def test_the_recipe_of_weighted_draws(tmp_path):
    with gdsload.ShardWriter(tmp_path / "d", {"n": gdsload.Field("int64")}) as writer:
        writer.write_batch({"n": torch.arange(4)})
    names = {"dataset": gdsload.ShardDataset(tmp_path / "d"), "weights": torch.tensor([0.0, 1.0, 2.0, 7.0])}
    made = run_recipe("Samplers", "def weighted", **names)
    with made["loader"] as loader:
        drawn = Counter(number for batch in loader for number in batch["n"].tolist())
    assert drawn.total() == 100_000
    assert all(abs(drawn[number] / 10_000 - weight) < 0.1 for number, weight in enumerate(made["weights"].tolist()))


def test_the_recipe_of_nanogpts_draws(tmp_path):
    with gdsload.ShardWriter(tmp_path / "tokens", {"tokens": gdsload.Field("uint16")}) as writer:
        writer.write_batch({"tokens": torch.arange(500).to(torch.uint16)})
    windows, cast = gdsload.Windows(tmp_path / "tokens", 9), gdsload.transforms.Cast("tokens", "int64")
    made = run_recipe("Windows of consecutive samples", "def begins", windows=windows, cast=cast, steps=50)
    with made["loader"] as loader:
        epochs = [torch.stack([batch["tokens"].cpu() for batch in loader]) for _ in range(2)]
    for epoch in epochs:
        assert epoch.shape == (50, 12, 9)
        assert torch.equal(epoch - epoch[..., :1], torch.arange(9).expand(50, 12, 9))
        assert len(epoch[..., 0].unique()) < 450  # of 600 draws out of 492
    assert not torch.equal(*epochs)


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_with_images_learns(tmp_path, capsys):
    with one_thread():  # others may want the processors, too
        assert example("images").main(str(tmp_path / "images"), 600) > 0.85
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_example_runs(tmp_path, capsys):
    example("train").main(str(tmp_path))
    assert re.fullmatch(r"y = (2\.9|3\.0)\d x \+ (0\.9|1\.0)\d, epoch 6\n", capsys.readouterr().out)


def test_lines_of_markdown_wrap():
    """But for code, tables, and what a command writes."""
    long = []
    for file in sorted(ROOT.rglob("*.md")):
        if any(part.startswith(".") for part in file.relative_to(ROOT).parts):
            continue
        fenced = False
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            kept = fenced or line.startswith(("    ", "|")) or " · " in line or " " not in line.strip()
            if (len(line) > 120 and not kept) or line.startswith(("<<<<<<<", ">>>>>>>")):  # of a merge
                long.append(f"{file.relative_to(ROOT)}:{number}")
    assert long == []


@pytest.mark.parametrize("heading", ["What errors mean", "What errors of a state mean"])
def test_errors_that_a_page_explains_are_raised(heading):
    text = (ROOT / "docs/ranks.md").read_text().partition(f"### {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    explained = [message.removesuffix(" …") for row in rows for message in re.findall(r"`([^`]+)`", row)]
    texts = [
        text for room in ("loader", "order") for file in ROOT.glob(f"gdsload/{room}/**/*.py") for text in texts_of(file)
    ]
    assert explained
    assert [one for one in explained if not any(begins(one, text) for text in texts)] == []
    assert not any(begins("the global batch (size of a batch times world size) differs", text) for text in texts)
    assert not any(begins("rank 3, which gets some other batches, failed", text) for text in texts)


def texts_of(file):
    """The texts in a module, without what is put into them; those of errors begin with their option, too."""
    for node in ast.walk(ast.parse(file.read_text())):
        yield fixed_in(node)
        for given in node.keywords if isinstance(node, ast.Call) else ():
            if given.arg == "option":
                yield f"{fixed_in(given.value)} {fixed_in(node.args[0])}"


def fixed_in(node):
    """A text, or nothing of what is none; spaces stand for what is put in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else " " for part in parts)


def begins(message, text):
    """Return whether a text begins with the words of a message, but for some that are put in."""
    words = re.findall(r"[^\W\d]+", message)
    rest = iter(words)
    found = [*itertools.takewhile(lambda word: word in rest, re.findall(r"[^\W\d]+", text))]
    return len(found) > 0.9 * len(words) and words[0] == found[0]


def test_the_index_for_programs_names_each_page_and_says_what_is_in_it(tmp_path):
    write_llms(ROOT, tmp_path)
    found = re.findall(r"^- \[(.+)\]\(_sources/(.+)\): (.+)$", (tmp_path / "llms.txt").read_text(), re.MULTILINE)
    assert {ROOT / file for _, file, _ in found} >= set(ROOT.glob("docs/*.md"))
    assert all(title and not re.search(r"[`\[]{3}|\]\(", said) for title, _, said in found)
