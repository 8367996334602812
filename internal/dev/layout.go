package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// layout is how a site is divided into nodes. It may not change while members run: theirs would be CPUs that another node then offers.
type layout struct {
	Nodes int `json:"nodes"`
	Slots int `json:"slots"` // of each node
}

// keepLayout notes the layout of a state directory, and refuses another one than members run with.
func keepLayout(stateDir string, wanted layout) error {
	path := filepath.Join(stateDir, "layout.json")
	var was layout
	switch data, err := os.ReadFile(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &was); err != nil {
			return fmt.Errorf("%s is damaged: %w; remove it if no members run", path, err)
		}
	}
	if was == wanted {
		return nil
	}
	running, err := filepath.Glob(filepath.Join(stateDir, "nodes", "*", "members", "*"))
	if err != nil {
		return err
	}
	if was.Nodes != 0 && len(running) > 0 {
		return fmt.Errorf("members still run on the %d nodes of %d cores of the last start with %s; start it the same way (--nodes %d --node-cores %d), "+
			"delete the clusters and then change it, or choose another directory with --state", was.Nodes, was.Slots, stateDir, was.Nodes, was.Slots)
	}
	data, err := json.Marshal(wanted)
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o600)
}
