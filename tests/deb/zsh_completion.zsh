#!/usr/bin/zsh -f
# zsh_completion.zsh FOLDER WORK: does a zsh that has FOLDER in its $fpath complete gpumemctl's
# command line? It types into one, as a user would.
setopt extended_glob
zmodload zsh/zpty zsh/zselect || exit 1
zpty shell "zsh -f -i"
trap 'zpty -d shell' EXIT

# Reads what the shell writes, until these words are in it.
until_it_says() {
  local text= part words=
  integer deadline=$((SECONDS + 60))
  while [[ $words != *$1* ]]; do
    if zpty -r -t shell part; then
      text+=$part
      # Without colours, and without the blank that goes away and comes again.
      words=${${${text//$'\e'\[[0-9;?]#[a-zA-Z]/}//?$'\b'/}// ##/ }
    elif (( SECONDS > deadline )); then
      print -u2 "zsh: no \"$1\" in \"$text\""
      return 1
    else
      zselect -t 5
    fi
  done
}

zpty -w shell "PS1='ready> '; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -D -u; LISTMAX=0"
zpty -w shell "print \$_comps[gpumemctl] is it"
until_it_says "_gpumemctl is it" || exit 1
# A unique word is put in; of many, the list comes.
zpty -w -n shell $'gpumemctl quo\tse\t--total\t'
until_it_says "quota set --total-limit" || exit 1
zpty -w -n shell $'\x15gpumemctl hold --kind m\t'
until_it_says "--kind mempool" || exit 1
