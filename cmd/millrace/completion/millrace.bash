# bash completion of millrace. The program says what may stand where; this script asks it.

_millrace() {
	local words=() glue='' word n=0 current line mode='' prefix
	# Bash splits words at = and :, and takes what follows these as the word to complete.
	for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
		if [[ -n $glue || $word == [=:]* ]] && ((n > 0)); then
			words[n - 1]+=$word
		else
			words[n++]=$word
		fi
		[[ $word == [=:] ]] && glue=1 || glue=''
	done
	((n > 0)) || words=('')
	current=${words[${#words[@]} - 1]}
	prefix=${current%"${current##*[=:]}"}
	COMPREPLY=()
	while IFS= read -r line; do
		case $line in
		:*) mode=${line#:} ;;
		*)
			line=${line%%$'\t'*}
			COMPREPLY+=("${line#"$prefix"}")
			;;
		esac
	done < <("${COMP_WORDS[0]/#\~\//$HOME/}" complete -- "${words[@]}" 2>/dev/null)
	case $mode in
	files | dirs)
		compopt -o filenames 2>/dev/null
		[[ $mode == files ]] && mode=-f || mode=-d
		while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$mode" -- "${current#"$prefix"}")
		;;
	nospace) compopt -o nospace 2>/dev/null ;;
	esac
	return 0
}

complete -F _millrace millrace
