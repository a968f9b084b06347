"""`ampkit completion`: a script that completes commands, options, recipes, keys and their values in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from rich.console import Console

from ampkit_cli.arguments import parser
from ampkit_cli.parser import Parser

from ..config.read import RECIPES
from ..config.sections import SECTIONS
from .display import print_line

_HOW = {
    "bash": "# Bash: ampkit completion bash > ~/.ampkit-completion; add to ~/.bashrc: source ~/.ampkit-completion",
    "zsh": "# zsh: ampkit completion zsh > ~/.ampkit-completion; add to ~/.zshrc: source ~/.ampkit-completion",
    "fish": "# fish: ampkit completion fish > ~/.config/fish/completions/ampkit.fish",
}


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the script."""
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]
    print_line(console, f"{_HOW[options.shell]}\n{write(parser().commands())}")
    return 0


def _flags(command: Parser) -> str:
    return " ".join(flag for flag in command.flags() if flag.startswith("--"))


def recipes() -> list[str]:
    """The names of the recipes that come with ampkit."""
    return sorted(file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.toml"))


def values() -> dict[str, list[str]]:
    """{section.key: the values that it can have, [] where that is no list of words}."""
    found: dict[str, dict[str, None]] = {}
    for section, kinds in SECTIONS.items():
        for name, kind in kinds.items():
            if name:
                found.setdefault(f"{section}.name", {})[name] = None
            for key, field in kind.model_fields.items():
                if key != "name":
                    found.setdefault(f"{section}.{key}", {}).update(dict.fromkeys(_words(field.annotation)))
    found["train.device"] = {"cpu": None, "cuda": None}
    return {key: [*words] for key, words in found.items()}


def _words(annotation: Any) -> Iterator[str]:
    if annotation is bool:
        yield from ("true", "false")
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif get_origin(annotation) is not list:
        for part in get_args(annotation):
            yield from _words(part)


_BASH = """\
_ampkit() {{
  local line="${{COMP_LINE:0:$COMP_POINT}}" flags="" words="" word
  word="${{line##* }}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -le 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *=*)
      case "${{word%%=*}}" in
{values}
      esac
      COMPREPLY=($(compgen -W "$words" -- "${{word#*=}}")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word")) ;;
  esac
  case "${{COMPREPLY[*]}}" in *=) compopt -o nospace 2>/dev/null ;; esac
}}
complete -F _ampkit ampkit"""

_ZSH = """\
_ampkit() {{
  local flags="" words_="" word="${{words[CURRENT]}}"
  if (( CURRENT == 2 )); then
    compadd -- {commands} --help --version
    return
  fi
  case "${{words[2]}}" in
{cases}
  esac
  case "$word" in
    -*) compadd -- ${{=flags}} ;;
    *=*)
      case "${{word%%=*}}" in
{values}
      esac
      compset -P "*="
      compadd -- ${{=words_}} ;;
    *)
      compadd -S "" -- ${{(M)${{=words_}}:#*=}}
      compadd -- ${{${{=words_}}:#*=}}
      _files ;;
  esac
}}
compdef _ampkit ampkit"""


def _bash(commands: Mapping[str, Parser]) -> str:
    return _filled(_BASH, commands, "words")


def _zsh(commands: Mapping[str, Parser]) -> str:
    return _filled(_ZSH, commands, "words_")  # `words` is zsh's own


def _filled(script: str, commands: Mapping[str, Parser], variable: str) -> str:
    keys = values()
    offered = f'; {variable}="{" ".join([*recipes(), *(f"{key}=" for key in keys)])}"'
    cases = [
        f'    {name}) flags="{_flags(command)}"{offered * command.takes_recipe()} ;;'
        for name, command in commands.items()
    ]
    given = [f'        {key}) {variable}="{" ".join(words)}" ;;' for key, words in keys.items() if words]
    last = f'        *) {variable}="" ;;'
    return script.format(commands=" ".join(commands), cases="\n".join(cases), values="\n".join([*given, last]))


def _fish(commands: Mapping[str, Parser]) -> str:
    lines = ["complete -c ampkit -n __fish_use_subcommand -f"]
    for name, command in commands.items():
        lines.append(f"complete -c ampkit -n __fish_use_subcommand -a {name} -d '{_quoted(command.description)}'")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c ampkit {seen} -l {flag[2:]}" for flag in _flags(command).split()]
    with_recipes = " ".join(name for name, command in commands.items() if command.takes_recipe())
    seen = f"-n '__fish_seen_subcommand_from {with_recipes}'"
    offered = [*recipes(), *(f"{key}={word}" for key, words in values().items() for word in words or [""])]
    return "\n".join([*lines, f"complete -c ampkit {seen} -a '{' '.join(offered)}'"])


def _quoted(text: str | None) -> str:
    return (text or "").replace("'", "\\'")
