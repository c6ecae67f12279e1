//go:build unix

package hub

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A blob that another has put into the cache is not believed for its length.
func TestBlobOfOtherContents(t *testing.T) {
	const name = "main/train-00000-of-00001.parquet"
	right := strings.Repeat("0123456789", 1000)
	for what, plant := range map[string]func(blob string) error{
		"other bytes": func(blob string) error { return os.WriteFile(blob, bytes.Repeat([]byte("x"), len(right)), 0o600) },
		"a link out": func(blob string) error {
			return errors.Join(os.WriteFile(blob+".elsewhere", []byte(right), 0o600), os.Symlink(blob+".elsewhere", blob))
		},
		"the right ones": func(blob string) error { return os.WriteFile(blob, []byte(right), 0o600) },
	} {
		server, h := start(t)
		s, err := h.Open(context.Background(), gsm8k)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := s.Find(name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(s.blob(f)), 0o755), plant(s.blob(f))); err != nil {
			t.Fatal(err)
		}
		server.Requests = nil
		if err := s.Fetch(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		wantContents(t, s, map[string]string{name: right})
		info, err := os.Lstat(s.blob(f))
		if err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: the blob is %v, %v", what, info, err)
		}
		if asked := len(server.Requests) > 0; asked != (what != "the right ones") {
			t.Errorf("%s: %v", what, server.Requests)
		}
	}
}

// Files of the cache that are written under a fixed name are not written through links, nor waited for.
func TestCacheFollowsNoLinks(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, plant := range map[string]func(s *Snapshot, f File) error{
		"a part that is a link": func(s *Snapshot, f File) error { return os.Symlink(victim, s.blob(f)+incomplete) },
		"a part that is a pipe": func(s *Snapshot, f File) error { return syscall.Mkfifo(s.blob(f)+incomplete, 0o600) },
		"a lock that is a link": func(s *Snapshot, f File) error {
			lock := filepath.Join(s.hub.Cache, ".locks", folder(s.Repo), f.Hash+".lock")
			return errors.Join(os.MkdirAll(filepath.Dir(lock), 0o755), os.Symlink(victim, lock))
		},
	} {
		_, h := start(t)
		s, err := h.Open(context.Background(), gsm8k)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := s.Find("README.md")
		if err := errors.Join(os.MkdirAll(filepath.Dir(s.blob(f)), 0o755), plant(s, f)); err != nil {
			t.Fatal(err)
		}
		if err := s.Fetch(context.Background(), f); err == nil {
			t.Errorf("%s is used", what)
		}
		if text, err := os.ReadFile(victim); string(text) != "kept" {
			t.Errorf("%s: the file that it leads to has %q, %v", what, text, err)
		}
	}
}

// All open directories are named at once, and only their owner is told to close them. In a cache with the sticky bit
// the directories that are used are this user's, root's, or those of the owner of the cache.
func TestCacheOfManyUsers(t *testing.T) {
	const me, other, third = 1000, 1001, 1002
	const sticky = 0o777 | os.ModeSticky
	cache := func(mode os.FileMode, uid int) cacheDir { return cacheDir{"/c", mode, uid, uid} }
	repo := func(mode os.FileMode, uid int) cacheDir { return cacheDir{"/c/models--a--b", mode, uid, uid} }
	blobs := cacheDir{"/c/models--a--b/blobs", 0o777, me, me}
	const own, chmod = "set HF_HUB_CACHE to a directory of your own", "chmod o-w"
	for _, c := range []struct {
		dirs       []cacheDir
		want, lack string
	}{
		{[]cacheDir{cache(0o755, me), repo(0o755, me)}, "", ""},
		{[]cacheDir{cache(0o775, other), repo(0o775, third)}, "", ""}, // the user's choice
		{[]cacheDir{cache(0o777, 0)}, own, chmod},                     // an emptyDir of Kubernetes
		{[]cacheDir{cache(0o777, me)}, chmod, ""},
		{[]cacheDir{cache(0o777, me), repo(0o777, me), blobs},
			"write to /c and /c/models--a--b and /c/models--a--b/blobs, so", ""},
		{[]cacheDir{cache(0o777, other), blobs}, own, chmod},
		{[]cacheDir{cache(sticky, 0)}, "", ""},
		{[]cacheDir{cache(sticky, 0), repo(0o755, me)}, "", ""},
		{[]cacheDir{cache(sticky, 0), repo(0o755, 0)}, "", ""},
		{[]cacheDir{cache(sticky, other), repo(0o755, other)}, "", ""},
		{[]cacheDir{cache(sticky, 0), repo(0o755, other)}, "/c/models--a--b belongs to another user (uid 1001)", chmod},
		{[]cacheDir{cache(sticky, 0), {"/c/models--a--b", 0o755, me, other}},
			"belongs to another user (uid 1001)", chmod}, // a link
		{[]cacheDir{cache(sticky, 0), repo(sticky, me)}, "write to /c/models--a--b, so", ""},
	} {
		err := checkDirs("/c", c.dirs, me)
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) ||
			c.lack != "" && strings.Contains(err.Error(), c.lack) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v: %v, want %q", c.dirs, err, c.want)
		}
	}
}

// A cache that every user can write is refused, also where all that is asked for is in it.
func TestCacheThatAllCanWrite(t *testing.T) {
	_, h := start(t)
	s, err := h.Open(context.Background(), gsm8k)
	if err == nil {
		err = s.Fetch(context.Background(), s.Files...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !hasModes(h.Cache) {
		t.Skip("the file system of the tests keeps no permissions")
	}
	for _, dir := range []string{h.Cache, h.dir(gsm8k), filepath.Join(h.dir(gsm8k), "blobs"),
		filepath.Join(h.dir(gsm8k), "refs"), filepath.Join(h.dir(gsm8k), "snapshots"), s.Dir()} {
		for mode, good := range map[os.FileMode]bool{0o777: false, 0o757: false, 0o777 | os.ModeSticky: dir == h.Cache,
			0o775: true} {
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			_, err := h.Open(context.Background(), gsm8k)
			if (err == nil) != good || !good && !strings.Contains(err.Error(), dir+", so") {
				t.Errorf("%s with mode %v: %v", dir, mode, err)
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
