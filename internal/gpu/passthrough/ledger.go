package passthrough

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
)

// record is what is kept of a GPU that is away from the node, or that nobody may have.
type record struct {
	// GPU is what was known of it while the node had it: its vendor's tools do not see it meanwhile.
	GPU api.NodeGPU `json:"gpu"`
	// Functions are its functions, with the drivers that they had.
	Functions []Function `json:"functions"`
	// Resets are the ways in which the kernel could reset it.
	Resets []string `json:"resets"`
	// Owner is the assignment that has it, "" for none.
	Owner string `json:"owner,omitempty"`
	// Quarantine is why nobody may have it, "" where that is not so.
	Quarantine string `json:"quarantine,omitempty"`
}

// ledger keeps records in a folder, a file for each GPU.
type ledger struct {
	dir     string
	mu      sync.Mutex
	records map[string]record // by PCI address
}

const recordEnd = ".gpu"

func openLedger(dir string) (*ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the owners of GPUs can't be kept: %w", err)
	}
	l := &ledger{dir: dir, records: map[string]record{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the owners of GPUs can't be read: %w", err)
	}
	for _, e := range entries {
		pci, is := strings.CutSuffix(e.Name(), recordEnd)
		if !is {
			continue
		}
		var r record
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err == nil && len(r.Functions) == 0 {
			err = errors.New("it names no functions")
		}
		if err != nil {
			return nil, fmt.Errorf("%s, which says who owns a GPU, can't be read: %w; if no machine of this node has GPUs, remove it", filepath.Join(dir, e.Name()), err)
		}
		l.records[pci] = r
	}
	return l, nil
}

// get returns the record of a GPU; false where there is none.
func (l *ledger) get(pci string) (record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, there := l.records[pci]
	return r, there
}

// put replaces a record, and returns when it outlasts the node's power.
func (l *ledger) put(pci string, r record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	l.records[pci] = r
	if err := durablefile.Write(filepath.Join(l.dir, pci+recordEnd), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("the owner of a GPU can't be kept: %w", err)
	}
	return nil
}

// drop removes the record of a GPU that is the node's again.
func (l *ledger) drop(pci string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := os.Remove(filepath.Join(l.dir, pci+recordEnd)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(l.records, pci)
	return durablefile.SyncDir(l.dir)
}

// addresses returns the GPUs with records, sorted.
func (l *ledger) addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for pci := range l.records {
		all = append(all, pci)
	}
	slices.Sort(all)
	return all
}
