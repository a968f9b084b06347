"""`ampkit completion`: what a shell proposes for a beginning of a command line."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ampkit import cli

# The beginning of a line, what is among the proposals, what is not.
LINES = [
    ("ampkit tr", ["train"], ["report"]),
    ("ampkit train digits_c", ["digits_cnn"], ["text_gpt"]),
    ("ampkit train digits_cnn amp.dt", ["amp.dtype="], ["train.steps="]),
    ("ampkit bench digits_cnn amp.dtype=b", ["bfloat16"], ["float16"]),
    ("ampkit train x optimizer.name=ada", ["adamw", "adagrad"], ["sgd"]),
    ("ampkit train x train.compile=", ["true", "false"], ["cpu"]),
    ("ampkit train --res", ["--resume"], ["--run-dir"]),
    ("ampkit evaluate run --we", ["--weights"], ["--resume"]),
]
BASH = """
COMP_LINE="$1"; COMP_POINT=${#1}; read -ra COMP_WORDS <<< "$1"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ampkit; printf '%s\\n' "${COMPREPLY[@]}"
"""
# In zsh the completion system itself drops what does not begin with the word: so does `compadd` here.
ZSH = """
compdef() { :; }; _files() { :; }; compset() { word="${word#*=}"; }
compadd() { shift ${@[(i)--]}; print -rl -- ${(M)@:#${word}*}; }
source $2; words=(${=1}); CURRENT=${#words}; _ampkit
"""


@pytest.fixture
def script(tmp_path, capsys):
    def write(shell):
        assert cli.main(["completion", shell]) == 0
        path = tmp_path / shell
        path.write_text(capsys.readouterr().out)
        return path

    return write


def proposals(shell, script, line):
    program = {"bash": f"source {script}\n{BASH}", "zsh": ZSH, "fish": f"source {script}; complete -C '{line}'"}[shell]
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    command = [shell, *options, "-c", program, *(["-", line, str(script)] if shell != "fish" else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=script.parent)
    assert done.stderr == ""
    return [each.partition("\t")[0].rpartition("=")[2] or each for each in done.stdout.splitlines() if each]


@pytest.mark.cpu
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_proposes_commands_options_recipes_keys_and_values(shell, script):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    written = script(shell)
    for line, among, without in LINES:
        found = proposals(shell, written, line)
        if shell == "fish" and line.endswith(".dt"):
            continue  # fish proposes keys with their values
        assert set(among) <= set(found), line
        assert not set(without) & set(found), line


@pytest.mark.cpu
def test_an_unknown_shell_is_refused(capsys):
    assert cli.main(["completion", "tcsh"]) == 2
    assert "unknown shell 'tcsh'" in capsys.readouterr().err
