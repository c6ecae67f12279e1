package trackers

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/vfs"
)

// serverRun says which run on a server a run is.
type serverRun struct {
	URL         string `json:"url"`
	ID          string `json:"run_id"`
	Run         string `json:"run"`         // the run's own id: a copy of its directory is another run
	Mathematics string `json:"mathematics"` // of its latest start
}

// serverFile keeps it in the output directory.
type serverFile struct {
	fsys vfs.FS
	dir  string
}

// maxServerFileBytes is more than any has.
const maxServerFileBytes = 64 << 10

// read returns nil where there is no such file, or none that says something.
func (f serverFile) read() *serverRun {
	doc, err := vfs.ReadBelow(f.fsys, f.dir, ServerName, maxServerFileBytes)
	if err != nil {
		return nil
	}
	var r serverRun
	if budget.Unmarshal(doc, &r) != nil || r.ID == "" {
		return nil
	}
	return &r
}

func (f serverFile) write(r serverRun) error {
	doc, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = vfs.WriteFileAtomic(f.fsys, filepath.Join(f.dir, ServerName), append(doc, '\n'))
	}
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", ServerName, err)
	}
	return nil
}
