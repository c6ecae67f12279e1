package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/below"
)

// File is a file of a commit.
type File struct {
	Name string `json:"name"` // a path with slashes
	Size int64  `json:"size"` // bytes
	// Hash is the SHA-256 of a file in large file storage, else the SHA-1 of git's blob; "" where only the cache is known.
	Hash string `json:"hash"`
}

// Bounds of what a server may list.
const (
	maxFiles     = 1_000_000 // entries of any kind, on all pages
	maxNameBytes = 128 << 20 // of all files
	maxPages     = 2_000
	maxPathBytes = 4096
	maxFileBytes = 1 << 60
)

// check refuses what cannot be a file of a commit.
func (f File) check() error {
	hashDigits := strings.Trim(f.Hash, "0123456789abcdef") == "" && (len(f.Hash) == 40 || len(f.Hash) == 64)
	switch {
	case !fs.ValidPath(f.Name) || f.Name == "." || len(f.Name) > maxPathBytes || !utf8.ValidString(f.Name) || strings.ContainsFunc(f.Name, unicode.IsControl):
		return fmt.Errorf("it lists a file %.200q, which is no path inside of a repository", f.Name)
	case !hashDigits:
		return fmt.Errorf("it gives no hash of %q", f.Name)
	case f.Size < 0 || f.Size > maxFileBytes:
		return fmt.Errorf("it gives %q a size of %d bytes", f.Name, f.Size)
	}
	return nil
}

// checkAll sorts files by name, and refuses what cannot be a listing.
func checkAll(files []File) error {
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	for i, f := range files {
		if err := f.check(); err != nil {
			return err
		}
		if i > 0 && files[i-1].Name == f.Name {
			return fmt.Errorf("it lists %q twice", f.Name)
		}
	}
	return nil
}

// askCommit asks the server where a revision is.
func (h *Hub) askCommit(ctx context.Context, r Repo) (string, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := h.ask(ctx, r, h.api(r)+"/revision/"+url.PathEscape(r.Revision)+"?expand=sha", &info); err != nil {
		return "", err
	}
	if !commitHash.MatchString(info.SHA) {
		return "", fmt.Errorf("%s did not answer as a hub does: no commit", h.shownEndpoint())
	}
	return info.SHA, nil
}

// listing collects the entries of pages.
type listing struct {
	files              []File
	entries, nameBytes int
}

// add reads an entry of a page.
func (l *listing) add(d *json.Decoder) error {
	var e struct {
		Type string `json:"type"`
		Path string `json:"path"`
		Size int64  `json:"size"`
		OID  string `json:"oid"`
		LFS  *struct {
			OID  string `json:"oid"`
			Size int64  `json:"size"`
		} `json:"lfs"`
	}
	if err := d.Decode(&e); err != nil {
		return err
	}
	l.entries++
	if e.Type == "file" {
		f := File{e.Path, e.Size, e.OID}
		if e.LFS != nil {
			f.Hash, f.Size = e.LFS.OID, e.LFS.Size
		}
		l.files = append(l.files, f)
		l.nameBytes += len(f.Name) + len(f.Hash)
	}
	if l.entries > maxFiles || l.nameBytes > maxNameBytes {
		return fmt.Errorf("it lists more than %d files", maxFiles)
	}
	return nil
}

// askFiles asks the server for all files of a commit, page by page.
func (h *Hub) askFiles(ctx context.Context, r Repo, commit string) ([]File, error) {
	strange := func(err error) error {
		return fmt.Errorf("%s did not answer as a hub does: %w", h.shownEndpoint(), err)
	}
	var all listing
	address := h.api(r) + "/tree/" + commit + "?recursive=true"
	for page := 0; address != ""; page++ {
		if page >= maxPages {
			return nil, strange(fmt.Errorf("it lists files on more than %d pages", maxPages))
		}
		var with listing // the page's entries; one that breaks off is asked for again
		next, err := h.ask(ctx, r, address, decoder(func(d *json.Decoder) error {
			with = all
			return decodeList(d, func() error { return with.add(d) })
		}))
		if err != nil {
			return nil, err
		}
		all, address = with, next
	}
	files := all.files
	if err := checkAll(files); err != nil {
		return nil, strange(err)
	}
	return files, nil
}

func (h *Hub) listingPath(r Repo, commit string) string {
	return filepath.Join(h.dir(r), "listings", commit+".json")
}

// storedFiles is the listing of a commit that was stored when it was asked for, by this program or by huggingface_hub.
func (h *Hub) storedFiles(r Repo, commit string) ([]File, bool) {
	f, err := below.OpenFile(h.listingPath(r, commit))
	if err != nil {
		return h.pythonsFiles(r, commit)
	}
	defer f.Close()
	var files []File
	d := json.NewDecoder(io.LimitReader(f, maxStoredBytes))
	err = decodeList(d, func() error {
		var one File
		if len(files) >= maxFiles {
			return errors.New("it has too many files")
		}
		err := d.Decode(&one)
		files = append(files, one)
		return err
	})
	if err != nil || checkAll(files) != nil {
		return nil, false // it is asked for again
	}
	return files, true
}

// Bounds of stored listings: this package's, which is read a file at a time, and huggingface_hub's.
const (
	maxStoredBytes = 512 << 20
	maxTreeBytes   = 64 << 20
)

// pythonsFiles is the listing that huggingface_hub stores with a snapshot since version 2 (_tree_cache.py there).
func (h *Hub) pythonsFiles(r Repo, commit string) ([]File, bool) {
	doc, err := below.ReadFile(filepath.Join(h.dir(r), "trees", commit+".json"), maxTreeBytes)
	if err != nil {
		return nil, false
	}
	var tree struct {
		Version int `json:"format_version"`
		Files   map[string]struct {
			Size    int64  `json:"size"`
			BlobID  string `json:"blob_id"`
			SHA256  string `json:"lfs_sha256"`
			LFSSize int64  `json:"lfs_size"`
		} `json:"files"`
	}
	if json.Unmarshal(doc, &tree) != nil || tree.Version != 1 {
		return nil, false
	}
	var files []File
	for name, f := range tree.Files {
		if f.SHA256 != "" {
			f.BlobID, f.Size = f.SHA256, f.LFSSize
		}
		files = append(files, File{name, f.Size, f.BlobID})
	}
	return files, len(files) > 0 && checkAll(files) == nil
}

func (h *Hub) storeFiles(r Repo, commit string, files []File) error {
	doc, err := json.Marshal(files)
	if err != nil {
		return err
	}
	return writeWhole(h.listingPath(r, commit), doc)
}

// presentFiles are the files of a commit that the cache has, without hashes.
func (h *Hub) presentFiles(r Repo, commit string) []File {
	dir := h.snapshotDir(r, commit)
	var files []File
	filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil // what cannot be read is not there
		}
		info, err := os.Stat(path) // of what a link leads to
		name, relErr := filepath.Rel(dir, path)
		if err == nil && relErr == nil && info.Mode().IsRegular() {
			files = append(files, File{Name: filepath.ToSlash(name), Size: info.Size()})
		}
		return nil
	})
	return files
}

// Similar are the ids of up to five repositories that have a repository's name in theirs, as the server finds them; nil
// if it does not.
func (h *Hub) Similar(ctx context.Context, r Repo) []string {
	if h.Offline {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, name, _ := strings.Cut(r.ID, "/")
	var found []struct {
		ID string `json:"id"`
	}
	if _, err := h.ask(ctx, r, h.Endpoint+"/api/"+r.Kind.plural()+"?limit=5&search="+url.QueryEscape(name), &found); err != nil {
		return nil
	}
	var ids []string
	for _, f := range found[:min(len(found), 5)] {
		if id.MatchString(f.ID) {
			ids = append(ids, f.ID)
		}
	}
	return ids
}
