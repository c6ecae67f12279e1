package template

import (
	"fmt"
	"strings"
)

// jinjaOnly are names that Jinja and Python know, by kind, which no public chat template was seen to use.
var jinjaOnly = map[string]string{
	"filter": " abs attr batch center e escape filesizeformat float forceescape groupby max min pprint random reverse " +
		"round slice striptags sum truncate urlencode urlize wordcount wordwrap xmlattr ",
	"test": " < <= > >= callable divisibleby escaped even filter ge greaterthan gt le lessthan lower lt odd sameas test " +
		"upper ",
	"method": " casefold center changed copy count cycle encode expandtabs find format_map fromkeys index isalnum isalpha " +
		"isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust " +
		"partition removeprefix removesuffix rfind rindex rjust rpartition rsplit splitlines swapcase translate zfill ",
	"tag": " autoescape block do extends from import include print with ",
}

func isUnsupported(kind, name string) bool { return strings.Contains(jinjaOnly[kind], " "+name+" ") }

// unsupported says that a template uses what is of Jinja but not of this package.
func unsupported(kind, name string) string {
	return fmt.Sprintf("the %s %s is not supported: write the template without it", kind, name)
}

// unknown says why there is no filter, test or tag of a name.
func unknown(kind, name string) string {
	if isUnsupported(kind, name) {
		return unsupported(kind, name)
	}
	return fmt.Sprintf("No %s named '%s'.", kind, name)
}
