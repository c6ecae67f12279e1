package hub

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Snapshot is a commit of a repository.
type Snapshot struct {
	Repo   Repo
	Commit string
	// Files are all files of the commit by name. If Partial is set, they are only the files that the cache has: another
	// program filled the cache, and the hub cannot be asked.
	Files   []File
	Partial bool

	hub *Hub
}

// ErrOffline is in the error of what is not in the cache while HF_HUB_OFFLINE is set.
var ErrOffline = errors.New("HF_HUB_OFFLINE is set: download it elsewhere, or unset that")

// Open finds the commit of a revision and what it has, in the cache or else from the server.
func (h *Hub) Open(ctx context.Context, r Repo) (*Snapshot, error) {
	if h.Cache == "" {
		return nil, errors.New("there is no place for a cache: set HF_HOME")
	}
	if err := h.CheckCache(r); err != nil {
		return nil, err
	}
	s := &Snapshot{Repo: r, hub: h}
	commit, known := h.cachedCommit(r)
	if !known {
		if h.Offline {
			return nil, fmt.Errorf("it is not in %s, and %w", h.Cache, ErrOffline)
		}
		var err error
		if commit, err = h.askCommit(ctx, r); err != nil {
			return nil, err
		}
	}
	s.Commit = commit
	var stored bool
	if s.Files, stored = h.storedFiles(r, commit); !stored && h.Offline {
		if s.Files, s.Partial = h.presentFiles(r, commit), true; len(s.Files) == 0 {
			return nil, fmt.Errorf("it is not in %s, and %w", h.Cache, ErrOffline)
		}
	} else if !stored {
		var err error
		if s.Files, err = h.askFiles(ctx, r, commit); err != nil {
			return nil, err
		}
		if err := h.storeFiles(r, commit, s.Files); err != nil {
			return nil, err
		}
	}
	// The ref is written after the listing and before the files, so an interrupted download resumes with this commit.
	if !known && commit != r.Revision {
		if err := writeWhole(h.ref(r), []byte(commit)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Dir is the directory of the commit's files. It may not exist yet.
func (s *Snapshot) Dir() string { return s.hub.snapshotDir(s.Repo, s.Commit) }

// Path is the path of a file, which may not be downloaded yet.
func (s *Snapshot) Path(f File) string { return filepath.Join(s.Dir(), filepath.FromSlash(f.Name)) }

// has reports whether a file is in the cache.
func (s *Snapshot) has(f File) bool {
	info, err := os.Stat(s.Path(f))
	return err == nil && info.Mode().IsRegular() && info.Size() == f.Size
}

// Find returns the file of a name.
func (s *Snapshot) Find(name string) (File, bool) {
	for _, f := range s.Files {
		if f.Name == name {
			return f, true
		}
	}
	return File{}, false
}

// Fetch makes files of the snapshot appear at their paths, one after the other.
func (s *Snapshot) Fetch(ctx context.Context, files ...File) error {
	var missing []File
	var need int64
	for _, f := range files {
		// A name that is a path here but not inside of the directory, such as one with backslashes.
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) || strings.Contains(f.Name, `\`) {
			return fmt.Errorf("%q cannot be a file here", f.Name)
		}
		if s.has(f) {
			continue
		}
		missing = append(missing, f)
		need += f.Size
		if info, err := os.Stat(s.blob(f) + incomplete); err == nil {
			need -= min(info.Size(), f.Size)
		}
		if need > maxFileBytes {
			need = maxFileBytes // it does not matter how far above any disk it is
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if s.hub.Offline {
		return fmt.Errorf("%d of %d files, such as %s, are not in %s, and %w",
			len(missing), len(files), missing[0].Name, s.hub.Cache, ErrOffline)
	}
	if err := os.MkdirAll(filepath.Join(s.hub.dir(s.Repo), "blobs"), 0o775); err != nil {
		return err
	}
	if s.hub.FreeBytes != nil {
		if free, err := s.hub.FreeBytes(s.hub.Cache); err == nil && free < need {
			return fmt.Errorf("%w: it needs %.1f GB, and %s has %.1f GB left: set HF_HOME to a larger disk, or choose fewer files",
				syscall.ENOSPC, float64(need)/1e9, s.hub.Cache, float64(free)/1e9)
		}
	}
	for _, f := range missing {
		if err := s.fetch(ctx, f); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}
