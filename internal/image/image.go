// Package image is the format of a built environment: a manifest that names kernel, initrd, root and chunk list by digest, the proof that
// what was read is what was built, and the site's signature.
//
// Everything is content-addressed: a name is "sha256:" and 64 hexadecimal digits. The root is read in chunks of a fixed size, lazily and
// in any order, each verified by the chunk list, whose own digest the manifest has. It is pure: it reads what it is given and never fetches
// or decides. Start with Manifest.
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// ChunkBytes is the size of the pieces a root is read in; the last one of a root is shorter.
const ChunkBytes = 256 << 10

// Digest names content: "sha256:" and 64 lower-case hexadecimal digits.
type Digest string

// DigestOf is the digest of data.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return digestOfSum(sum[:])
}

func digestOfSum(sum []byte) Digest { return Digest("sha256:" + hex.EncodeToString(sum)) }

// ErrDigest: content is not what its digest says.
var ErrDigest = errors.New("digest mismatch")

// Check returns an error unless the digest is well formed.
func (d Digest) Check() error {
	digits, ok := strings.CutPrefix(string(d), "sha256:")
	if sum, err := hex.DecodeString(digits); !ok || err != nil || len(sum) != sha256.Size || strings.ToLower(digits) != digits {
		return fmt.Errorf("%q is not a digest; a digest is sha256: and 64 hexadecimal digits", string(d))
	}
	return nil
}

// Hex is the digest's digits, fit for a file name.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Blob is content by digest.
type Blob struct {
	Digest    Digest `json:"digest"`
	SizeBytes int64  `json:"size_bytes"`
}

// RootFormat is the file system of a root's image.
type RootFormat string

// The formats.
const (
	EROFS    RootFormat = "erofs"
	SquashFS RootFormat = "squashfs"
	// QCOW2 is no file system: the root is the disk of another system.
	QCOW2 RootFormat = "qcow2"
)

// Root is the root of an environment: a read-only file system. The zero value is none: the initrd does all there is to do.
type Root struct {
	Blob
	Format RootFormat `json:"format"`
	// UnpackedBytes is the sum of the sizes of its files.
	UnpackedBytes int64 `json:"unpacked_bytes"`
	// Chunks is a blob with the SHA-256 of each chunk of ChunkBytes, 32 bytes each, in their order.
	Chunks     Blob  `json:"chunks"`
	ChunkBytes int64 `json:"chunk_bytes"`
}

// Metal is what a machine needs besides the root to boot the environment.
type Metal struct {
	Kernel Blob `json:"kernel"`
	// Initrd holds the kernel's modules; the boot agent comes from the server in an initrd of its own.
	Initrd        Blob   `json:"initrd"`
	KernelVersion string `json:"kernel_version"`
	// Arguments are added to the kernel's command line.
	Arguments string `json:"arguments,omitempty"`
	// Drivers are the names of the kernel's modules for PCI devices and of all that is built into it, sorted.
	Drivers []string `json:"drivers,omitempty"`
}

// Manifest is a built environment. Its JSON, as Encode writes it, is what its digest is of; it holds nothing that differs between two
// builds of the same recipe.
type Manifest struct {
	Environment  string `json:"environment"`
	Description  string `json:"description,omitempty"`
	RecipeDigest string `json:"recipe_digest"`
	Architecture string `json:"architecture"` // as uname -m tells
	Root         Root   `json:"root"`
	// Layers lie above the root, the last one on top.
	Layers []Root `json:"layers,omitempty"`
	// Metal is nil for an environment without a kernel.
	Metal *Metal `json:"metal,omitempty"`
	// Disk is set for the disk of another system: the root is that, and there is nothing else.
	Disk         *api.ForeignDisk `json:"disk,omitempty"`
	Stacks       []api.Stack      `json:"stacks"`
	Requirements api.Requirements `json:"requirements"`
	// Services are what clusters set up in members that have it, those of its base among them.
	Services []api.Service `json:"services,omitempty"`
}

// Encode is the manifest's one form, and its digest.
func (m *Manifest) Encode() ([]byte, Digest, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, "", fmt.Errorf("encode the manifest of %q: %w", m.Environment, err)
	}
	return data, DigestOf(data), nil
}

// Decode reads a manifest and verifies that it is the one of that digest.
func Decode(data []byte, want Digest) (*Manifest, error) {
	if got := DigestOf(data); got != want {
		return nil, fmt.Errorf("manifest %s: %w: it is %s", want, ErrDigest, got)
	}
	m := &Manifest{}
	if err := json.Unmarshal(data, m); err != nil {
		return nil, fmt.Errorf("manifest %s: %w", want, err)
	}
	return m, nil
}

// Blobs are all blobs the manifest names; of an environment without a root, kernel and initrd only.
func (m *Manifest) Blobs() []Blob {
	var blobs []Blob
	for _, r := range m.Roots() {
		blobs = append(blobs, r.Blob, r.Chunks)
	}
	if m.Metal != nil {
		blobs = append(blobs, m.Metal.Kernel, m.Metal.Initrd)
	}
	return blobs
}

// Roots are the root and the layers over it, the topmost last; none for an environment that is kernel and initrd only.
func (m *Manifest) Roots() []Root {
	if m.Root.Digest == "" {
		return nil
	}
	return append([]Root{m.Root}, m.Layers...)
}
