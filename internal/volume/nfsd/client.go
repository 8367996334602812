package nfsd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/volume/mounts"
)

// Mount is a volume that another node serves.
type Mount struct {
	// Server is where the other node's server listens, Own this node's address on the way there.
	Server netip.AddrPort
	Own    netip.Addr
	// Name is that of the share.
	Name string
	// Dir is where it is mounted.
	Dir      string
	ReadOnly bool
}

// Attach mounts a volume, on a thread whose network namespace leads to the server. Repeating it is harmless. It waits until the server lets this node
// in, or ctx ends.
//
// Whoever uses the volume while the server does not answer waits until it does, and can be killed meanwhile.
func (m Mount) Attach(ctx context.Context) error {
	if mounted, err := mountedAt(m.Dir); err != nil || mounted {
		return err
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return fmt.Errorf("volume %s: %w", m.Name, err)
	}
	server := m.Server.Addr().String()
	way := "rw"
	if m.ReadOnly {
		way = "ro"
	}
	options := []string{
		way, "nosuid", "nodev", "vers=4.2", "proto=tcp", "sec=sys", "hard", "addr=" + server, "clientaddr=" + m.Own.String(), fmt.Sprintf("port=%d", m.Server.Port()),
		"timeo=100", "retrans=1", // after 10 s without an answer the client connects anew, and what ends a mount waits for 30 s at most
		"nosharecache", // each cluster has its own, also where two have the same volume
	}
	source := server
	if m.Server.Addr().Is6() {
		source = "[" + server + "]"
	}
	// A process can be killed while the kernel waits for the server. Without a helper (-i), the kernel gets the options as they are.
	cmd := exec.CommandContext(ctx, "mount", "-i", "-t", "nfs4", "-o", strings.Join(options, ","), source+":/"+m.Name, m.Dir)
	if said, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("mounting volume %s: %v does not let this node in: %w", m.Name, m.Server, ctx.Err())
		}
		if strings.Contains(string(said), "unknown filesystem type") {
			return fmt.Errorf("mounting volume %s: this node's kernel has no NFS client; load its module nfsv4", m.Name)
		}
		return fmt.Errorf("mounting volume %s of %v: %w: %s", m.Name, m.Server, err, strings.TrimSpace(string(said)))
	}
	return nil
}

// Detach unmounts a volume, also one whose server does not answer. Repeating it is harmless.
func (m Mount) Detach(ctx context.Context) error {
	for {
		mounted, err := mountedAt(m.Dir)
		if err != nil {
			return fmt.Errorf("volume %s: %w", m.Name, err)
		}
		if !mounted {
			break
		}
		if err := unmount(ctx, m.Dir); err != nil {
			if still, _ := mountedAt(m.Dir); still {
				return fmt.Errorf("unmounting volume %s: %w", m.Name, err)
			}
		}
	}
	if err := os.Remove(m.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("volume %s: %w", m.Name, err)
	}
	return nil
}

// unmount takes a mount away by a process, which must not look at the directory (-c). It returns with ctx at the latest: the kernel may keep the process
// while it waits for a server that is gone, after it has taken the mount out of the tree.
func unmount(ctx context.Context, dir string) error {
	ended := make(chan error, 1)
	go func() {
		said, err := exec.CommandContext(ctx, "umount", "-i", "-c", "-f", "-l", dir).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// mountedAt reports whether something is mounted at a directory. It does not touch what is mounted there, whose server may not answer.
func mountedAt(dir string) (bool, error) {
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	all, err := mounts.Below(above)
	at := filepath.Join(above, filepath.Base(dir))
	return slices.ContainsFunc(all, func(m mounts.Mount) bool { return m.Path == at }), err
}
