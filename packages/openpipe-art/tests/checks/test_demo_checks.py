"""Before `art demo` does anything, everything that is wrong is told in one message, and nothing is made."""

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from art.checks import PreflightError, State, demo_checks, failures, require
from art.checks import demo as demo_module
from art.checks.packages import install_command

HIDDEN = ("art_trainer", "art_serving", "rich", "monarch", "psutil", "tokenizers", "jinja2", "torch")
BASE_INSTALL = f"""
import importlib.metadata, sys

HIDDEN = {HIDDEN!r}
DISTRIBUTIONS = {{"art-trainer", "art-serving", "rich", "torchmonarch", "psutil", "tokenizers", "jinja2"}}

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
real = importlib.metadata.Distribution.from_name.__func__

def from_name(cls, name):
    if name in DISTRIBUTIONS:
        raise importlib.metadata.PackageNotFoundError(name)
    return real(cls, name)

importlib.metadata.Distribution.from_name = classmethod(from_name)
"""
"""A Python that has the base package without any extra."""


@pytest.fixture
def place(tmp_path, monkeypatch, everything_installed, memory, room) -> Path:
    """A folder to run in, on a machine where everything else will do."""
    memory(12)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ART_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ART_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def base_install(code: str, folder: Path, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HOME": str(folder),
        "ART_CACHE_DIR": str(folder / "cache"),
        "ART_STATE_DIR": str(folder / "state"),
        "COLUMNS": "100",
    }
    return subprocess.run(
        [sys.executable, "-c", BASE_INSTALL + textwrap.dedent(code)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def failed_names(**arguments) -> set[str]:
    return {check.name for check in failures(demo_checks(**arguments))}


def test_where_everything_is_there_nothing_is_refused_and_nothing_is_made(place):
    require(demo_checks())
    require(demo_checks(run_dir=place / "a" / "b"))
    assert list(place.iterdir()) == []


def test_it_takes_well_below_a_third_of_a_second(place):
    demo_checks()
    started = time.process_time()
    demo_checks(run_dir=place / "run")
    assert time.process_time() - started < 0.3


def test_a_file_is_no_run_folder(place):
    (place / "file").write_text("")
    with pytest.raises(PreflightError, match=r"run folder: .*file is a file.*--run-dir"):
        require(demo_checks(run_dir=place / "file"))


def test_a_folder_with_something_in_it_is_refused(place):
    (place / "notes").mkdir()
    (place / "notes" / "mine.txt").write_text("")
    with pytest.raises(PreflightError, match=r"notes is not empty, needed: a folder that is new"):
        require(demo_checks(run_dir=place / "notes"))


def test_a_run_that_took_a_step_is_kept_and_the_way_on_is_told(place):
    (place / "run" / "generations" / "step-00000004-ff").mkdir(parents=True)
    (place / "run" / "run.json").write_text("{}")
    with pytest.raises(PreflightError, match=r"to step-00000004-ff.*art demo --resume .*run"):
        require(demo_checks(run_dir=place / "run"))
    assert failed_names(run_dir=place / "run", resume=True) == set()


def test_a_run_that_never_took_a_step_does_not_stand_in_the_way(place):
    (place / "run" / "trajectories").mkdir(parents=True)
    (place / "run" / "run.json").write_text("{}")
    assert failed_names(run_dir=place / "run") == set()
    assert failed_names(run_dir=place / "run", resume=True) == set()


@pytest.mark.parametrize("make", [True, False])
def test_what_is_no_run_cannot_be_resumed(place, make):
    if make:
        (place / "other").mkdir()
    assert failed_names(run_dir=place / "other", resume=True) == {"run to resume"}


def test_the_steps_decide_how_much_disk_is_needed(place, room):
    room(place / "run", 200 << 20)
    assert failed_names(run_dir=place / "run", steps=5) == set()
    with pytest.raises(PreflightError, match=r"disk of the run: 210 MB free.*775 MB"):
        require(demo_checks(run_dir=place / "run", steps=25))


@pytest.mark.parametrize(("gib", "state"), [(5.0, State.FAILURE), (5.5, State.WARNING), (8.0, State.OK)])
def test_memory_below_the_demos_peak_is_refused(place, memory, gib, state):
    memory(gib)
    (check,) = [check for check in demo_checks() if check.name == "memory"]
    assert check.state is state
    assert "5.7 GiB (the demo's measured peak)" in check.needed


def test_a_models_own_sizes_are_asked_for(place, memory, demo_model_folder):
    assert failed_names(model=demo_model_folder) == set()
    memory(4)
    assert failed_names(model=demo_model_folder) == {"memory"}
    with pytest.raises(PreflightError, match=r"model: '.*nothing' is no folder.*--model DIR"):
        require(demo_checks(model=place / "nothing"))


def edited(folder: Path, file: str, **values: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_model_without_a_chat_template_is_refused(place, demo_model_folder):
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (demo_model_folder / name).unlink(missing_ok=True)
    with pytest.raises(PreflightError, match=r"prompts: .* has no chat template.*--model DIR"):
        require(demo_checks(model=demo_model_folder))


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ messages[0].content | nothing }}", "cannot be compiled"),
        ("{{ raise_exception('no users here') }}", "refuses these messages: no users here"),
        ("{{ 1 // 0 }}", "refuses these messages: ZeroDivisionError: "),
        ("{{ messages[9].content.strip() }}", "refuses these messages"),
        ("", "renders nothing"),
    ],
)
def test_a_chat_template_that_does_not_render_is_refused(place, demo_model_folder, template, told):
    (demo_model_folder / "chat_template.jinja").write_text(template)
    (check,) = [check for check in failures(demo_checks(model=demo_model_folder)) if check.name == "prompts"]
    assert told in check.found


def test_a_template_that_is_no_text_is_refused(place, demo_model_folder):
    (demo_model_folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(PreflightError, match=r"chat_template\.jinja cannot be read"):
        require(demo_checks(model=demo_model_folder))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff"])
def test_a_tokenizer_that_is_none_is_refused(place, demo_model_folder, content):
    (demo_model_folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(PreflightError, match=r"prompts: .*tokenizer\.json cannot be read"):
        require(demo_checks(model=demo_model_folder))


def test_a_tokenizer_of_another_model_is_refused(place, demo_model_folder):
    edited(demo_model_folder, "config.json", vocab_size=100)
    found = {check.name: check.found for check in failures(demo_checks(model=demo_model_folder))}
    assert "and the model has 100 tokens" in found["prompts"]


def test_prompts_longer_than_the_models_positions_are_refused(place, demo_model_folder):
    edited(demo_model_folder, "config.json", max_position_embeddings=40)
    found = {check.name: check for check in failures(demo_checks(model=demo_model_folder))}
    assert found["prompts"].needed == "at most 40"
    assert "take a model that was made for 2048 tokens or more" in found["packed_sequence_length"].remedy


def test_a_model_of_too_many_layers_for_the_kv_cache_is_told_as_that(place, demo_model_folder):
    """A token of it takes 2 x 500 layers x 3 heads x 64 numbers x 4 bytes = 750 KiB."""
    edited(demo_model_folder, "config.json", num_hidden_layers=500)
    check = {check.name: check for check in failures(demo_checks(model=demo_model_folder))}["KV cache"]
    assert "1.0 GiB hold 1398 tokens" in check.found
    assert "says 500 layers with 3 key-value heads of 64 numbers: 750 KiB for each token" in check.found
    assert check.remedy.startswith("take a model with fewer layers or key-value heads")


def test_a_program_file_that_hides_a_module_is_refused(place):
    (place / "random.py").write_text("")
    with pytest.raises(PreflightError, match=r"module names: .*random\.py would be imported in place of"):
        require(demo_checks())


def test_everything_that_is_wrong_comes_at_once(place, memory, room):
    memory(1)
    room(place / "cache", 1000)
    room(Path("/dev/shm"), 1000)
    (place / "file").write_text("")
    with pytest.raises(PreflightError) as caught:
        require(demo_checks(run_dir=place / "file" / "run"), "art demo cannot run here")
    names = [line.split(":")[0] for line in str(caught.value).splitlines()]
    assert names[0] == "art demo cannot run here"
    assert set(names[1:]) >= {"- run folder", "- memory", "- shared memory"}


def test_the_row_is_as_long_as_the_demos():
    source = Path(demo_module.__file__).parents[1] / "demo" / "yes_no_maybe" / "train.py"
    assert f"packed_sequence_length={demo_module.PACKED_SEQUENCE_LENGTH}" in source.read_text()


def test_without_the_extra_one_message_names_the_command(tmp_path):
    done = base_install(
        """
        from art.checks import PreflightError, demo_checks, require
        try:
            require(demo_checks(), "art demo cannot run here")
        except PreflightError as error:
            print(error)
            raise SystemExit(1)
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert install_command("cpu") in done.stdout
    for name in ("torchmonarch==0.7.0", "art-trainer", "art-serving", "rich>=13", "psutil>=6"):
        assert f"{name} is not installed" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["--resume", "nope"], ["--json"]])
def test_art_demo_itself_names_the_command_where_the_extra_is_missing(tmp_path, arguments):
    done = base_install(f"from art.cli import main\nmain({['demo', *arguments]!r})", tmp_path)
    assert done.returncode == 1
    first, command = done.stderr.splitlines()
    assert first.startswith("art demo: not installed: monarch, psutil, art_trainer, art_serving, rich")
    assert command.strip() == install_command("cpu")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["kind"] for event in told] == (["PreflightError"] if "--json" in arguments else [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--steps", "0"], 2, "is not a whole number from 1 to 100000"),
        (["--bogus"], 2, "usage: art demo"),
        (["--help"], 0, "how long, how much"),
    ],
)
def test_art_demo_knows_its_arguments_without_the_extra(tmp_path, arguments, code, said):
    done = base_install(f"from art.cli import main\nmain({['demo', *arguments]!r})", tmp_path)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_works_in_the_base_install(tmp_path):
    code = """
        import argparse, json
        from art.checks import doctor
        parser = argparse.ArgumentParser()
        doctor.add_arguments(parser)
        raise SystemExit(doctor.run(parser.parse_args({arguments})))
        """
    done = base_install(code.replace("{arguments}", "[]"), tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "yes  client" in done.stdout
    assert "no   distributed" in done.stdout
    assert "no   cpu" in done.stdout
    assert install_command("distributed") in done.stdout
    assert "art demo cannot run here" in done.stdout
    as_json = base_install(code.replace("{arguments}", '["--json"]'), tmp_path)
    told = json.loads(as_json.stdout)
    assert (as_json.returncode, told["demo_runs"]) == (1, False)
    assert {entry["name"]: entry["runs"] for entry in told["capabilities"]} == {
        "client": True,
        "distributed": False,
        "cpu": False,
        "GPU": False,
    }
    assert list(tmp_path.iterdir()) == []


def test_importing_the_checks_is_cheap(tmp_path):
    code = """
        import sys
        before = set(sys.modules)
        import art.checks
        heavy = {"asyncio", "openai", "pydantic", "numpy", "torch", "art_topology", "packaging"}
        print(sorted(heavy & (set(sys.modules) - before)))
        """
    assert base_install(code, tmp_path).stdout == "[]\n"


def test_a_name_on_a_hub_is_told_how_to_become_a_folder():
    told = [check.line() for check in failures(demo_checks(model=Path("gpt2")))]
    assert len([line for line in told if "gpt2" in line]) == 1
    assert any("Names on a hub are not fetched: `uvx" in line for line in told)


def damaged_weights(folder):
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])


def damaged_config(folder):
    (folder / "config.json").write_text("{")


def config_without_width(folder):
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (damaged_weights, "base_model"),
        (damaged_config, "base_model"),
        (config_without_width, "base_model"),
    ],
)
def test_a_damaged_model_is_told_once(model_folder, damage, name):
    folder = model_folder()
    damage(folder)
    of_model = [check for check in failures(demo_checks(model=folder)) if str(folder) in check.found]
    assert [check.name for check in of_model] == [name]
