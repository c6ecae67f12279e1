# fish completion of millrace. The program says what may stand where; this script asks it.

function __millrace_complete
	set -l words (commandline -opc) (commandline -ct)
	set -l mode ''
	set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
	for line in ($program complete -- $words[2..] 2>/dev/null)
		switch $line
			case ':*'
				set mode (string sub -s 2 -- $line)
			case '*'
				echo $line
		end
	end
	set -l value (string replace -r '^--[^=]*=' '' -- $words[-1])
	set -l flag (string sub -l (math (string length -- $words[-1]) - (string length -- $value)) -- $words[-1])
	switch $mode
		case files
			string replace -r '^' -- "$flag" (__fish_complete_path "$value")
		case dirs
			string replace -r '^' -- "$flag" (__fish_complete_directories "$value" '')
	end
end

complete -c millrace -f -a '(__millrace_complete)'
