package hostmem

import (
	"testing"
	"testing/fstest"
)

// The sums are those of the mappings that ask.
func TestHugePagesOf(t *testing.T) {
	const smaps = `00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
Rss:                 328 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me dw
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Rss:                8192 kB
AnonHugePages:      6144 kB
VmFlags: rd wr mr mw me ac hg
7f0001000000-7f0001400000 rw-p 00000000 00:00 0
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac sd hg
7f0002000000-7f0002800000 rw-p 00000000 00:00 0
Rss:                8192 kB
AnonHugePages:      8192 kB
VmFlags: rd wr mr mw me ac sd
`
	of := func(text string) fstest.MapFS { return fstest.MapFS{"proc/self/smaps": {Data: []byte(text)}} }
	if huge, asked, err := hugePages(of(smaps)); huge != 8<<20 || asked != 12<<20 || err != nil {
		t.Errorf("%d of %d bytes: %v", huge, asked, err)
	}
	for _, root := range []fstest.MapFS{{}, of("Rss:  many kB\nVmFlags: hg\n")} {
		if _, _, err := hugePages(root); err == nil {
			t.Error("no error")
		}
	}
}

// A system without huge pages is named, with what to do; one with them is not, nor one that does not tell.
func TestHugePagesOff(t *testing.T) {
	settings := map[string]bool{"always madvise [never]\n": true, "always [madvise] never\n": false,
		"[always] madvise never\n": false}
	for text, off := range settings {
		if said := hugePagesOff(fstest.MapFS{hugePagesFile: {Data: []byte(text)}}); (said != "") != off {
			t.Errorf("%q: %q", text, said)
		}
	}
	if said := hugePagesOff(fstest.MapFS{}); said != "" {
		t.Errorf("of a system that does not tell: %q", said)
	}
}
