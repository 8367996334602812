package agent

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/durablefile"
)

// A member that is sent to another node leaves a note in its control directory. It is written before and removed if it stays: an agent that starts
// again, also after its host has, must not take a member that is not there any more for one that was never started.
func (a *Agent) departurePath(id string) string { return filepath.Join(a.controlDir(id), "departed") }

// hasDeparted reports whether a member was sent to another node, or may have been.
func (a *Agent) hasDeparted(id string) bool {
	_, err := os.Stat(a.departurePath(id))
	return err == nil || !errors.Is(err, os.ErrNotExist)
}

func (a *Agent) noteDeparture(id string) error {
	return writeDurably(a.departurePath(id), nil)
}

func (a *Agent) forgetDeparture(id string) error {
	if err := os.Remove(a.departurePath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durablefile.SyncDir(a.controlDir(id))
}
