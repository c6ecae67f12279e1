package surroundings

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// TestLeave runs itself with a descriptor, a umask and variables that are inherited, and looks at what a process of it inherits.
func TestLeave(t *testing.T) {
	const inner = "SURROUNDINGS_TEST"
	if os.Getenv(inner) != "" {
		if err := Leave(); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("sh", "-c", `umask; env; (: <&9) 2>/dev/null && echo "9 is open"; exit 0`).CombinedOutput()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("begin\n" + string(out) + "end\n")
		return
	}
	if _, err := exec.LookPath("sh"); err != nil || runtime.GOOS == "windows" {
		t.Skip("there is no shell")
	}
	cmd := exec.Command("sh", "-c", `exec 9</dev/null; umask 077; exec "$0" -test.run='^TestLeave$' -test.v`, os.Args[0])
	cmd.Env = append(os.Environ(), inner+"=1", "https_proxy=http://127.0.0.1:1", "LC_ALL=tr_TR.UTF-8", "HF_TOKEN=secret", "SURROUNDINGS_KEPT=1", "TMPDIR=/tmp/a 'b' $c/"+strings.Repeat("x", 200))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, seen, _ := strings.Cut(string(out), "begin\n")
	seen, _, _ = strings.Cut(seen, "end\n")
	for _, gone := range []string{"proxy", "LC_ALL", "secret", "9 is open", "077", "$c"} {
		if strings.Contains(seen, gone) {
			t.Errorf("a process of the test has %s: %s", gone, seen)
		}
	}
	for _, there := range []string{"22\n", "SURROUNDINGS_KEPT=1", "PATH="} {
		if !strings.Contains(seen, there) {
			t.Errorf("a process of the test lacks %s: %s", there, seen)
		}
	}
}
