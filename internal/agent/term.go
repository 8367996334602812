package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The highest leader term obeyed is kept across restarts: it is what fences a deposed leader's late orders.
const termFile = "term"

func loadTerm(dir string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(dir, termFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the leader term: %w", err)
	}
	term, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is damaged (%q is no number); remove it once you are sure that no old leader runs",
			filepath.Join(dir, termFile), text)
	}
	return term, nil
}

func saveTerm(dir string, term int64) error {
	return writeDurably(filepath.Join(dir, termFile), []byte(strconv.FormatInt(term, 10)+"\n"))
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
