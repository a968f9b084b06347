"""The doctor: looks at everything and never fails."""

from __future__ import annotations

import pytest

from ampkit import doctor


def test_every_needed_package_is_found_where_the_tests_run():
    found = {finding.topic: finding for finding in doctor.examine()}
    assert {found[name].state for name in ("numpy", "ml_dtypes", "safetensors", "pydantic", "rich")} == {"ok"}


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(doctor, "_NEEDED", ("surely-not-there",))
    wanted = doctor.Finding("surely-not-there", "missing", "not installed", "pip install surely-not-there")
    assert wanted in doctor.examine()


def test_a_look_that_fails_becomes_a_note_and_the_others_go_on(monkeypatch):
    def _broken():
        raise OSError("no such file")
        yield

    monkeypatch.setattr(doctor, "_LOOKS", (_broken, *doctor._LOOKS))
    first, *others = doctor.examine()
    assert first == doctor.Finding("broken", "note", "could not be examined: no such file")
    assert others


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_a_system_that_was_never_tried_is_said_to_be_untried(monkeypatch, system):
    monkeypatch.setattr(doctor.platform, "system", lambda: system)
    found = {finding.topic: finding for finding in doctor.examine()}
    assert "untried" in found["system"].cure
    assert "untried" in found["CPU"].cure


def test_instructions_that_ampkit_does_not_use_are_not_sold_as_speed(monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: A CPU\nflags\t\t: fpu amx_bf16 avx512_fp16\n")
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(doctor, "Path", lambda path: info)
    monkeypatch.setattr(doctor, "_has", lambda part: False)
    found = {finding.topic: finding for finding in doctor._cpu()}
    assert found["bfloat16 on the CPU"].found == "amx_bf16 (AMX)"
    assert found["float16 on the CPU"].found == "avx512_fp16 (AVX-512)"
    assert {found["bfloat16 on the CPU"].state, found["float16 on the CPU"].state} == {"note"}
