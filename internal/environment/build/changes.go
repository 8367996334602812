package build

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
)

// An archive of changed files is hostile input: the users of a member made it. Package archive makes its files without following what they say.

// changes makes the layer's tree of the files that a member changed.
func (w *worker) changes(ctx context.Context) error {
	in, err := os.Open(w.Changes)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	dir, err := os.Open(w.root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	_, err = archive.Unpack(ctx, in, archive.Target{Dir: dir, VolumeBytes: changedfiles.DefaultMaxBytes, Layer: true})
	if errors.Is(err, archive.ErrDamaged) || errors.Is(err, archive.ErrRefused) {
		return failf("the changed files can't be used: %v", err)
	}
	if err != nil {
		return err
	}
	return lockRoot(w.root)
}

// lockRoot takes root's password away: the boot agent gave the machine one for its console. Those of users stay.
func lockRoot(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	const name = "etc/shadow"
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	text, err := root.ReadFile(name)
	if err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if fields := strings.SplitN(line, ":", 3); len(fields) == 3 && fields[0] == "root" {
			line = "root:*:" + fields[2]
		}
		out.WriteString(line)
	}
	return root.WriteFile(name, []byte(out.String()), info.Mode().Perm()) // mode and owner stay
}

// searchChanges reads back the layer that was packed. It fails where a key is left: nothing of the image has left this node then.
func (w *worker) searchChanges(ctx context.Context) error {
	r := w.manifest.Root
	if r.Digest == "" {
		return nil // nothing was changed
	}
	dir := filepath.Join(w.tmp, "packed")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := mountRoot(ctx, string(r.Format), filepath.Join(w.out, r.Digest.Hex()), dir); err != nil {
		return fmt.Errorf("mount the layer: %w", err)
	}
	err := changedfiles.CheckTree(ctx, dir, w.Recipe.KeepKeys)
	if unmounted := unix.Unmount(dir, 0); unmounted != nil {
		err = errors.Join(err, fmt.Errorf("unmount the layer: %w", unmounted))
	}
	var keys *changedfiles.KeysError
	if errors.As(err, &keys) || errors.Is(err, changedfiles.ErrNotOmitted) {
		return failf("the layer holds what it must not: %v", err)
	}
	return err
}
