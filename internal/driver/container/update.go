package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Update rewrites the generated files of a member's /etc. Each is replaced at once; those no longer asked for are removed.
func (d *Driver) Update(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := d.update(ctx, m); err != nil {
		return fmt.Errorf("updating member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) update(ctx context.Context, m driver.Member) error {
	id := m.Assignment.ID
	if err := checkMember(m); err != nil {
		return err
	}
	before, err := d.recall(id)
	if err != nil {
		return err
	}
	env, err := d.cfg.Environments.Lookup(m.Assignment.Environment)
	if err != nil {
		return err
	}
	root, err := env.Root(ctx)
	if err != nil {
		return fmt.Errorf("environment %q: %w", env.Name(), err)
	}
	if _, err := planEtc(m.Files, root); err != nil {
		return err
	}
	old, wanted := paths(before.Files), paths(m.Files)
	for _, path := range wanted {
		for _, b := range root.Binds {
			if !slices.Contains(old, path) && (path == b.Target || strings.HasPrefix(path, b.Target+"/")) {
				return fmt.Errorf("generated file %s would be hidden by the host's %s until the member is started anew", path, b.Target)
			}
		}
	}
	// The list of generated files is written before there are new ones and after there are no old ones, so that a crash
	// leaves none unknown.
	if err := d.remember(m, append(old, wanted...)); err != nil {
		return err
	}
	etc := d.path(id, dirEtc)
	for _, f := range m.Files {
		if err := writeFile(etc, m, f); err != nil {
			return err
		}
	}
	for _, path := range old {
		if slices.Contains(wanted, path) {
			continue
		}
		err := os.Remove(filepath.Join(etc, strings.TrimPrefix(path, "/etc/")))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return d.remember(m, wanted)
}

func paths(files []driver.File) []string {
	list := make([]string, 0, len(files))
	for _, f := range files {
		list = append(list, f.Path)
	}
	return list
}

// remember writes what the member was started with, for recovery: of its files the paths only, as there are keys among them.
func (d *Driver) remember(m driver.Member, files []string) error {
	m.Files = nil
	for _, path := range files {
		m.Files = append(m.Files, driver.File{Path: path})
	}
	return writeJSON(d.path(m.Assignment.ID, fileMember), m)
}

// recall reads what remember wrote.
func (d *Driver) recall(id string) (driver.Member, error) {
	var m driver.Member
	data, err := os.ReadFile(d.path(id, fileMember))
	if errors.Is(err, fs.ErrNotExist) {
		return m, driver.ErrNotFound
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("reading %s: %w", fileMember, err)
	}
	return m, nil
}

// writeJSON writes a file of the member's directory at once.
func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
