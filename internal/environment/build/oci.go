package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// oci unpacks an image from an archive: an OCI image layout (OCI image specification 1.1, image-layout.md) or what "docker save" writes.
func (w *worker) oci(ctx context.Context) error {
	file, tag, _ := strings.Cut(w.Recipe.Base.OCI, "@")
	archive, err := w.openSource(file)
	if err != nil {
		return err
	}
	defer archive.Close()
	names, err := members(archive)
	if err != nil {
		return failf("%q is not a tar archive: %v; decompress a compressed archive first", file, err)
	}
	var img v1.Image
	switch {
	case names["oci-layout"]:
		img, err = w.layoutImage(archive, tag)
	case names["manifest.json"]:
		img, err = dockerImage(archive, tag)
	default:
		return failf("%q is not an image: it has neither oci-layout nor manifest.json", file)
	}
	if err != nil {
		return failf("%q can't be read as an image: %v", file, err)
	}
	if config, err := img.ConfigFile(); err == nil && config.Architecture != "" && goArchitecture(config.Architecture) != machine() {
		return failf("%q is an image for %s, but this builder node is %s; use a builder node of the image's architecture", file, config.Architecture, machine())
	}
	content := mutate.Extract(img)
	defer content.Close()
	if err := unpack(ctx, content, w.root); err != nil {
		return fmt.Errorf("unpack %s: %w", file, err)
	}
	// When a layer is damaged or leads out of the root, the stream of the flattened layers ends like any other; only behind its end stands why.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return failf("%q can't be unpacked: %v", file, err)
	}
	return w.looksLikeARoot(file)
}

// goArchitecture is an architecture as uname -m tells it.
func goArchitecture(name string) string {
	switch name {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return name
}

// members are the names at the top of a tar archive.
func members(archive io.ReadSeeker) (map[string]bool, error) {
	names := map[string]bool{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		names[path.Clean(h.Name)] = true
	}
	_, err := archive.Seek(0, io.SeekStart)
	return names, err
}

// dockerImage reads what "docker save" writes.
func dockerImage(archive *os.File, tag string) (v1.Image, error) {
	var want *name.Tag
	if tag != "" {
		t, err := name.NewTag(tag, name.WeakValidation)
		if err != nil {
			return nil, err
		}
		want = &t
	}
	opener := func() (io.ReadCloser, error) { return os.Open(fmt.Sprintf("/proc/self/fd/%d", archive.Fd())) }
	return tarball.Image(opener, want)
}

// layoutImage unpacks an image layout and picks the image: the only one, or that with the tag (org.opencontainers.image.ref.name).
func (w *worker) layoutImage(archive io.Reader, tag string) (v1.Image, error) {
	dir := filepath.Join(w.tmp, "layout")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := unpackPlain(archive, dir); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	return pick(index, tag)
}

func pick(index v1.ImageIndex, tag string) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.Descriptor
	var tags []string
	for _, d := range m.Manifests {
		if t := d.Annotations["org.opencontainers.image.ref.name"]; t != "" {
			tags = append(tags, t)
		}
		if p := d.Platform; p != nil && goArchitecture(p.Architecture) != machine() {
			continue
		}
		if tag == "" || d.Annotations["org.opencontainers.image.ref.name"] == tag {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("the archive has no image %q for %s; its tags are: %s", tag, machine(), strings.Join(tags, ", "))
	case len(found) > 1:
		return nil, fmt.Errorf("the archive has %d images; choose one with @TAG, a tag of: %s", len(found), strings.Join(tags, ", "))
	case found[0].MediaType.IsIndex():
		inner, err := index.ImageIndex(found[0].Digest)
		if err != nil {
			return nil, err
		}
		return pick(inner, "")
	}
	return index.Image(found[0].Digest)
}

// unpackPlain unpacks the directories and files of an archive.
func unpackPlain(archive io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeReg:
			if err = root.MkdirAll(path.Dir(name), 0o755); err == nil {
				err = writeFile(root, name, r, 0o644)
			}
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(root *os.Root, name string, content io.Reader, mode uint32) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, chmod(f, mode), f.Close())
}

// unpack writes a root's flattened layers. Devices and the like are left out: whoever runs the root mounts its own.
func unpack(ctx context.Context, content io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if name == "." {
			continue
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := unpackOne(root, name, h, r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func unpackOne(root *os.Root, name string, h *tar.Header, content io.Reader) error {
	mode := uint32(h.Mode) & 0o7777
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeReg:
		if err := writeFile(root, name, content, mode); err != nil {
			return err
		}
	case tar.TypeSymlink:
		return errors.Join(root.Symlink(h.Linkname, name), root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimPrefix(h.Linkname, "/")), name)
	default:
		return nil
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	err = f.Chown(h.Uid, h.Gid)
	for key, value := range h.PAXRecords {
		if attribute, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			err = errors.Join(err, unix.Fsetxattr(int(f.Fd()), attribute, []byte(value), 0))
		}
	}
	return errors.Join(err, chmod(f, mode), f.Close()) // last: a change of owner clears set-user-ID
}
