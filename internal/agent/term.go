package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/durablefile"
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
		return 0, fmt.Errorf("%s is damaged (%q is not a term); make sure that no old leader runs, then remove the file", path, text)
	}
	if of != site {
		return 0, nil
	}
	return term, nil
}

// spareSuffix marks the file that takes the next term. It exists before it is needed.
const spareSuffix = ".spare"

// saveTerm stores a term so that a power cut leaves the old or the new one. It needs no room on the disk but for the first term: a server
// that starts again has a new term, and on a full disk the agent could not obey it, not even to release members. The new term is written
// over the spare file, which then changes places with the present one.
func saveTerm(dir, site string, term int64) error {
	path, data := filepath.Join(dir, termFile), fmt.Appendf(nil, "%d %s\n", term, site)
	if err := overwrite(path+spareSuffix, data); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, path+spareSuffix, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if err == nil {
		return durablefile.SyncDir(dir)
	}
	// There is no term to change places with, or the file system can't do that.
	if err := writeDurably(path, data); err != nil {
		return fmt.Errorf("store the leader's term: %w", err)
	}
	return nil
}

// overwrite gives a file this content in the room that it has already.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// writeDurably replaces a file durably, and makes its folder if need be.
func writeDurably(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durablefile.Write(path, data, 0o600)
}
