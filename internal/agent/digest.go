package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// The digest of the generated files that a member has lies in its control directory, so that an agent that starts again knows it.
// It is removed before the files are touched and written when they are as they should be: what is found is true.
func (a *Agent) digestPath(id string) string { return filepath.Join(a.controlDir(id), "files.digest") }

// loadDigest returns what is known of a member's files, "" for nothing.
func (a *Agent) loadDigest(id string) string {
	text, err := os.ReadFile(a.digestPath(id))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// changeFiles calls what changes the files of a member to those of a digest. That the digest can't be written is no failure of that: what
// runs is right, and after a restart of the agent its files are written once more.
func (a *Agent) changeFiles(id, digest string, change func() error) error {
	if err := os.Remove(a.digestPath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	path := a.digestPath(id)
	err := os.WriteFile(path+".new", []byte(digest+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		a.cfg.Log.Warn("the list of a member's files can't be stored", "member", id, "error", errors.Join(err, os.Remove(path+".new")))
	}
	return nil
}
