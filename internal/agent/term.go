package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The highest leader term obeyed is kept across restarts: it is what fences a deposed leader's late orders. Terms of another site
// say nothing here, so the site is kept with it.
const termFile = "term"

// loadTerm returns the highest term obeyed of a site; 0 when this node belonged to another one, or to none.
func loadTerm(dir, site string) (int64, error) {
	path := filepath.Join(dir, termFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the leader term: %w", err)
	}
	number, of, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	term, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is damaged (%q is no term); remove it once you are sure that no old leader runs", path, text)
	}
	if of != site {
		return 0, nil
	}
	return term, nil
}

func saveTerm(dir, site string, term int64) error {
	return writeDurably(filepath.Join(dir, termFile), fmt.Appendf(nil, "%d %s\n", term, site))
}

// writeDurably replaces a file so that a power cut leaves the old or the new content.
func writeDurably(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
