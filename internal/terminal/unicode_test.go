package terminal

import "testing"

func TestShowsBlocks(t *testing.T) {
	for _, c := range []struct {
		all, ctype, lang, term string
		want                   bool
	}{
		{"", "", "", "xterm", false}, {"", "", "en_US.UTF-8", "xterm", true}, {"C", "", "en_US.UTF-8", "xterm", false},
		{"", "C.utf8", "C", "", true}, {"C.UTF-8", "", "", "dumb", false}, {"C.UTF-8", "", "", "linux", false},
		{"", "", "ja_JP.eucJP", "xterm", false},
	} {
		t.Setenv("LC_ALL", c.all)
		t.Setenv("LC_CTYPE", c.ctype)
		t.Setenv("LANG", c.lang)
		t.Setenv("TERM", c.term)
		if got := ShowsBlocks(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
