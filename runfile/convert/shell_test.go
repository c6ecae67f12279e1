package convert

import (
	"fmt"
	"strings"
	"testing"
)

// A script has the settings that its shell would give the command, as far as the script says them.
func TestScripts(t *testing.T) {
	for _, c := range [][2]string{
		{"python -m x a.b=1 c.d=two e.f='a b'", "map[a.b:1 c.d:two e.f:a b]"},
		{"python -m x a.b=1 c.d=True e.f=[x,y] g.h=null # i.j=2", "map[a.b:1 c.d:true e.f:[x y] g.h:<nil>]"},
		{"A=3\nB=$((A * 2+1))\npython -m x a.b=$A c.d=${B} e.f=$(( (A+B)/2 ))", "map[a.b:3 c.d:7 e.f:5]"},
		{"A=${A:-x}\nB=\"${C:-${A}y}\"\npython -m x a.b=$A c.d=$B e.f=${D:-}", "map[a.b:x c.d:xy e.f:<nil>]"},
		{"A='a.b=1 c.d=2'\npython -m x $A \\\n  e.f=3", "map[a.b:1 c.d:2 e.f:3]"},
		{"A='a.b=1 c.d=2'\npython -m x \"$A\" e.f=3 g.h=4 i.j=5", "map[a.b:1 c.d=2 e.f:3 g.h:4 i.j:5]"},
		{"A=(a.b=1 # one\n c.d=2)\nA+=(e.f=3)\npython -m x \"${A[@]}\" \"$@\"", "map[a.b:1 c.d:2 e.f:3]"},
		{"export A=1; B=2; python -m x a.b=$A c.d=$B +e.f=1 && echo g.h=1", "map[a.b:1 c.d:2 e.f:1]"},
		{"cat <<EOF\nq.a=1 q.b=2 q.c=3 q.d=4\nEOF\npython -m x a.b=1 c.d=2 e.f=3 >log 2>&1 x.y=1",
			"map[a.b:1 c.d:2 e.f:3 x.y:1]"},
		{"python t.py --a 1 --b-c --d=x --e 1 2 a.b=1 --f 1e-6", "map[a:1 a.b:1 b_c:true d:x e:[1 2] f:1e-6]"},
		{"accelerate launch --num_processes 8 t.py --a 1 --b 2 --c 3", "map[a:1 b:2 c:3]"},
		{"python -m x a.b=$X c.d=$(date) e.f=${Y%.*}", "map[a.b:$X c.d:$(date) e.f:${Y%.*}]"},
		{"echo a.b=1\necho hi", "map[]"},
	} {
		doc, want := c[0], c[1]
		values, _, _ := readScript([]byte(doc))
		if got := fmt.Sprint(values); got != want {
			t.Errorf("%q: %s, want %s", doc, got, want)
		}
	}
	_, program, s := readScript([]byte("if x; then A=1; else A=2; fi\nB=$Q\npython a/grpo.py --a $A --b $W --c 3"))
	if unknown, unsure := s.undecided(); program != "grpo" || fmt.Sprint(unknown, unsure) != "[$W] [$A]" {
		t.Errorf("%s, not decided: %q, %q", program, unknown, unsure)
	}
}

// Scripts whose variables double, and those that are nested without an end, are read in a moment.
func TestScriptsAreBounded(t *testing.T) {
	for _, doc := range []string{
		"A=xxxxxxxx\n" + strings.Repeat("A=$A$A$A$A\n", 200) + "python -m x a.b=$A c.d=$A e.f=$A",
		"A=(x x)\n" + strings.Repeat("A=(\"${A[@]}\" \"${A[@]}\")\n", 200) + "python -m x a.b=1",
		strings.Repeat("${A:-", 5000), strings.Repeat("A=(", 5000), strings.Repeat("$((", 5000),
		strings.Repeat("$(", 5000),
		"python -m x a.b=$((" + strings.Repeat("(", 5000) + "1))",
	} {
		readScript([]byte(doc))
	}
}
