package agent

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/config"
	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/fabric/shaper"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/imagepool"
	"github.com/nearmetal/nearmetal/internal/volume/lvmthin"
	"github.com/nearmetal/nearmetal/internal/volume/nfs"
	"github.com/nearmetal/nearmetal/internal/volume/reflink"
)

const (
	// mostPoolBytes bounds the file of a pool whose size nobody chose: a tenth of the disk of the state.
	mostPoolBytes = 64 << 30
	// poolAlign is what a chosen size is cut to.
	poolAlign = 1 << 20
)

// openPool opens the node's pool of volumes below the agent's directory; nil: the node offers none. A pool takes no room before its first volume.
func openPool(opts config.Agent, dir, program string) (volume.Pool, error) {
	// What is in memory does not outlive a boot, and the state of a machine that its server booted always is, even where its root's image is on a disk.
	if opts.NoVolumes || opts.InRAM || opts.BootGeneration > 0 {
		return nil, nil
	}
	at := filepath.Join(dir, "volumes")
	images, err := volumeImages(opts, at, dir)
	if err != nil {
		return nil, err
	}
	pool, err := imagepool.New(imagepool.Config{Dir: at, Images: images, Program: program})
	if err != nil {
		return nil, fmt.Errorf("the node's volumes: %w", err)
	}
	return pool, nil
}

// volumeImages returns what keeps the images of volumes: a thin pool that was named, or files in the directory.
func volumeImages(opts config.Agent, at, dir string) (imagepool.Images, error) {
	if opts.VolumeThinPool == "" {
		bytes, err := poolBytes(opts.VolumePoolBytes, at, dir)
		if err != nil {
			return nil, err
		}
		return reflink.New(reflink.Config{Dir: at, LoopBytes: bytes, Sparse: opts.VolumePoolSparse}), nil
	}
	// Volumes in files would seem to be lost.
	files, err := filepath.Glob(filepath.Join(at, "images", "*"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(at, "pool.img")); err == nil || len(files) > 0 {
		return nil, fmt.Errorf("--volume-pool-lvm: %s holds volumes in files; delete those volumes and what is in the directory, or leave the option out", at)
	}
	return lvmthin.New(lvmthin.Config{Group: opts.VolumeGroup, Pool: opts.VolumeThinPool}), nil
}

// openVolumes opens the node's pool, and what carries volumes between nodes over the link that bears the underlay.
func openVolumes(cfg *Config, opts config.Agent, networks *fabricnode.Fabric, underlay netip.Addr, dir, program string, encrypts bool) (err error) {
	if cfg.Volumes, err = openPool(opts, dir, program); err != nil {
		return err
	}
	groups, err := cgroup.Find(cgroup.NodeGroup(opts.Name, dir))
	if err != nil {
		cfg.UnlimitedIO = "all reads and writes: " + err.Error()
	} else {
		cfg.UnlimitedIO = groups.UnlimitedIO()
	}
	host, err := netns.Current()
	if err != nil {
		return err
	}
	root, socket := func(string) string { return "" }, func(_, _ string) string { return "" }
	if cfg.Volumes != nil {
		root, socket = cfg.Volumes.Root, cfg.Volumes.Socket
	}
	mtu := func(ctx context.Context) (int, error) {
		u, err := networks.Underlay(ctx)
		return u.MTU, err
	}
	cfg.Sharer = nfs.New(nfs.Config{
		Dir: filepath.Join(dir, "sharing"), Host: host, Underlay: underlay, UnderlayMTU: mtu, Encrypts: encrypts, SetPeers: shaper.SetPeers, Root: root,
		Socket: socket, Program: program, Attacher: networks,
	})
	return nil
}

// closePool gives back what the host holds of a pool in memory, when the agent ends. Members go on, and what they have attached stays.
func closePool(ctx context.Context, pool volume.Pool) error {
	if pool == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookDeadline)
	defer cancel()
	found, err := pool.Observe(ctx)
	if err != nil || slices.ContainsFunc(found, func(v volume.State) bool { return len(v.Attached) > 0 }) {
		return err
	}
	return pool.Close(ctx)
}

// poolBytes is the size of the file that holds a node's volumes, where one is made. A size that was chosen must fit the disk, less what is kept free
// of it.
func poolBytes(chosen int64, at, dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("the node's volumes: %w", err)
	}
	if chosen == 0 {
		return min(int64(disk.Blocks)*disk.Bsize/10, mostPoolBytes) / poolAlign * poolAlign, nil
	}
	room, err := inventory.DiskBytes(dir, inventory.MemberDisks)
	if err != nil {
		return 0, err
	}
	var file unix.Stat_t
	if unix.Lstat(filepath.Join(at, "pool.img"), &file) == nil {
		return chosen, nil // it was made, and stays as it is
	}
	if chosen > room {
		return 0, fmt.Errorf("--volume-pool-size %s: the disk of %s has room for %s; give a smaller size, or put the state directory on a larger disk",
			api.Bytes(chosen), dir, api.Bytes(room))
	}
	return chosen / poolAlign * poolAlign, nil
}
