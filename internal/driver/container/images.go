package container

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/imagemount"
)

// images are the roots of images that members stand on. They are mounted in the spawner's namespace only: a member's own mounts keep what
// it needs of them, so that the kernel counts the users, and a driver that ends, whatever way, leaves none. A driver that is opened later
// mounts an image again for its next member.
type images struct {
	mu sync.Mutex
	// mounted are roots as a range of IDs sees them, by key; files the images' own mounts below them, by digest.
	mounted map[imageKey]string
	layers  map[string][]layerMount
	// users are the members that this driver started, or begins to.
	users map[string]imageKey
	// plain tells that owners can't be mapped here, and why was told.
	plain bool
}

// layerMount is where a layer is mounted, and its loop device if it needs one.
type layerMount struct{ at, loop string }

// imageKey is an image as members of one range of IDs see it.
type imageKey struct {
	digest string
	base   uint32
}

// imageRoot mounts an image for a member, unless another one's mount serves it, too, and tells what the member sees of it.
func (d *Driver) imageRoot(ctx context.Context, h *host, m driver.Member) (environment.Root, error) {
	if d.cfg.Images == nil {
		return environment.Root{}, errors.New("built environments are disabled on this node")
	}
	img, err := d.cfg.Images.Image(m.Assignment.EnvironmentDigest)
	if err != nil {
		return environment.Root{}, err
	}
	key := imageKey{img.Digest, m.Assignment.UserIDs.First}
	i := &d.images
	i.mu.Lock()
	defer i.mu.Unlock()
	i.users[m.Assignment.ID] = key
	dir, ok := i.mounted[key]
	if !ok {
		dir = filepath.Join(h.spawner.imagesDir(), image.Digest(img.Digest).Hex()+"."+strconv.FormatUint(uint64(key.base), 10))
		err := h.spawner.do(ctx, func() error { return d.mountImage(h, img, key, dir) })
		if err != nil {
			return environment.Root{}, fmt.Errorf("mounting image %s: %w", img.Digest, err)
		}
		i.mounted[key] = dir
	}
	accounts, err := accountsOf(h.spawner.outside(dir))
	if err == nil {
		err = writeJSON(d.path(m.Assignment.ID, fileAccounts), accounts)
	}
	if err != nil {
		return environment.Root{}, err
	}
	root, err := environment.RootOf(dir, h.spawner.outside(dir))
	for n := range root.Dirs { // seen through a mount that maps the owners
		root.Dirs[n].UID, root.Dirs[n].GID = unmapped(root.Dirs[n].UID, key.base), unmapped(root.Dirs[n].GID, key.base)
	}
	return root, err
}

// unmapped is an ID as the image has it.
func unmapped(id, base uint32) uint32 {
	if id >= base {
		return id - base
	}
	return id
}

// mountImage mounts an image at dir, in the spawner's namespace: each layer once, as it is, for all; then with the owners of the key's range
// of IDs, the layers above each other.
func (d *Driver) mountImage(h *host, img environment.Image, key imageKey, dir string) (err error) {
	layers, ok := d.images.layers[key.digest]
	if !ok {
		for n, layer := range img.Layers {
			at := filepath.Join(h.spawner.imagesDir(), image.Digest(img.Digest).Hex()+"-"+strconv.Itoa(n))
			loop, err := imagemount.Mount(layer, at)
			if err != nil {
				for _, l := range layers {
					unmountAll(l.at)
				}
				return err
			}
			layers = append(layers, layerMount{at, loop})
		}
		d.images.layers[key.digest] = layers
	}
	holder, err := holdIDs(key.base, 65536)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.cmd.Process.Pid))
	if err != nil {
		return err
	}
	defer userns.Close()
	if len(layers) == 1 {
		return d.mapped(layers[0].at, dir, userns)
	}
	var lower []string
	defer func() { unmountAll(lower...) }() // the overlay keeps what it needs of them
	for n := len(layers) - 1; n >= 0; n-- {
		at := dir + "-" + strconv.Itoa(n)
		if err := d.mapped(layers[n].at, at, userns); err != nil {
			return err
		}
		lower = append(lower, at)
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("overlay", dir, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+strings.Join(lower, ":")); err != nil {
		return errors.Join(fmt.Errorf("stacking its %d layers: %w", len(layers), err), os.Remove(dir))
	}
	return nil
}

// mapped shows a mount at another place with the owners of a user namespace (idmapped mounts, mount_setattr(2); EROFS since Linux 5.19).
// Where the kernel can't, members see the files as owned by nobody, which is told once.
func (d *Driver) mapped(from, at string, userns *os.File) error {
	if err := os.MkdirAll(at, 0o711); err != nil {
		return err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cloning the mount of %s: %w", from, err)
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil && !d.images.plain {
		d.images.plain = true
		d.log.Warn("files of images appear to members as owned by nobody: the kernel can't map their owners", "reason", err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting at %s: %w", at, err)
	}
	return nil
}

// unmountAll takes mounts of the spawner's namespace away; who uses them keeps what they show.
func unmountAll(places ...string) {
	for _, at := range places {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		_ = os.Remove(at)
	}
}

// leaveImage notes that a member is gone; the mounts of an image that no member of this driver uses go with it.
func (d *Driver) leaveImage(ctx context.Context, h *host, id string) error {
	loops, err := d.unmountUnused(ctx, h, id)
	if err != nil {
		return err
	}
	return awaitLoops(ctx, loops)
}

// unmountUnused unmounts what only this member used, and returns the loop devices that go with it.
func (d *Driver) unmountUnused(ctx context.Context, h *host, id string) (loops []string, err error) {
	i := &d.images
	i.mu.Lock()
	defer i.mu.Unlock()
	key, ok := i.users[id]
	if !ok {
		return nil, nil
	}
	delete(i.users, id)
	used, shared := false, false
	for _, other := range i.users {
		used = used || other == key
		shared = shared || other.digest == key.digest
	}
	var gone []string
	if dir, mounted := i.mounted[key]; mounted && !used {
		gone = append(gone, dir)
		delete(i.mounted, key)
	}
	if !shared {
		for _, l := range i.layers[key.digest] {
			gone = append(gone, l.at)
			if l.loop != "" {
				loops = append(loops, l.loop)
			}
		}
		delete(i.layers, key.digest)
	}
	if len(gone) == 0 {
		return nil, nil
	}
	// Once begun it is done: what is forgotten here would stay mounted for as long as the driver is open.
	err = h.spawner.do(context.WithoutCancel(ctx), func() error {
		unmountAll(gone...)
		return nil
	})
	return loops, err
}

// leaveGone lets go of the images of members that another driver has cleaned.
func (d *Driver) leaveGone(ctx context.Context, h *host) error {
	d.images.mu.Lock()
	users := slices.Collect(maps.Keys(d.images.users))
	d.images.mu.Unlock()
	for _, id := range users {
		if !exists(d.dir(id)) {
			if err := d.leaveImage(ctx, h, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitLoops waits until the kernel has taken away loop devices that nothing is mounted from any more: it does so a moment later.
func awaitLoops(ctx context.Context, loops []string) error {
	ctx, cancel := context.WithTimeout(ctx, loopTime)
	defer cancel()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for _, loop := range loops {
		for exists(filepath.Join("/sys/block", filepath.Base(loop), "loop")) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s is still in use, though no member has it mounted", loop)
			case <-look.C:
			}
		}
	}
	return nil
}

// loopTime is how long the kernel may take for that.
const loopTime = 5 * time.Second

// probeImage is an empty EROFS.
//
//go:embed probe.erofs
var probeImage []byte

// CheckImages tells why images can't be mounted on this host, or nil. It mounts one, in a namespace of its own.
func (d *Driver) CheckImages() error {
	if os.Geteuid() != 0 {
		return errNotRoot
	}
	// One place, so that an agent that is killed here leaves nothing that its next start would not remove.
	dir := filepath.Join(d.cfg.StateDir, "probe")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file, at := filepath.Join(dir, "image"), filepath.Join(dir, "root")
	if err := os.WriteFile(file, probeImage, 0o600); err != nil {
		return err
	}
	result := make(chan error)
	go onOwnThread(func() {
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
		}
		if err == nil {
			_, err = imagemount.Mount(environment.Layer{Path: file, Format: image.EROFS}, at)
		}
		if err == nil {
			err = unix.Unmount(at, 0)
		}
		result <- err
	})
	return <-result
}

// holdIDs makes a process that is in a user namespace with this range of IDs.
func holdIDs(base, count uint32) (*namespaceHolder, error) {
	return holdMapped([]syscall.SysProcIDMap{{HostID: int(base), Size: int(count)}})
}
