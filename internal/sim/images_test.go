package sim

import (
	"io/fs"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// built are the images of the site.
type built struct{}

var _ controller.Images = built{}

// environments are the names that images are built for.
var environments = []string{lifecycle.InspectEnvironment, "debian-mpi", "debian-slurm"}

// made is a manifest, as it is encoded, and its digest.
type made struct {
	manifest image.Manifest
	data     []byte
	digest   image.Digest
}

// manifests are those of all environments, by name.
var manifests = sync.OnceValue(func() map[string]made {
	all := map[string]made{}
	for _, name := range append([]string{builtHere, forged}, environments...) {
		m := image.Manifest{
			Environment: name, Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal},
			Metal: &image.Metal{Kernel: image.Blob{Digest: image.DigestOf([]byte("kernel"))}, Initrd: image.Blob{Digest: image.DigestOf([]byte("initrd"))}},
		}
		if name == builtHere {
			m.RecipeDigest = recipeDigest()
		}
		if name == forged { // nothing in it but its root tells that it is not what it says
			m.Environment, m.RecipeDigest, m.Root.SizeBytes = builtHere, recipeDigest(), 1
		}
		data, digest, err := m.Encode()
		if err != nil {
			panic(err)
		}
		all[name] = made{m, data, digest}
	}
	return all
})

func manifestOf(environment string) (image.Manifest, []byte, image.Digest) {
	m := manifests()[environment]
	return m.manifest, m.data, m.digest
}

func environmentOf(digest string) string {
	for name, m := range manifests() {
		if string(m.digest) == digest {
			return name
		}
	}
	return ""
}

func (built) Load(digest image.Digest) (*image.Manifest, error) {
	m, _, _ := manifestOf(environmentOf(string(digest)))
	return &m, nil
}

func (built) Manifest(digest image.Digest) (manifest, signature []byte, err error) {
	name := environmentOf(string(digest))
	if name == "" {
		return nil, nil, fs.ErrNotExist
	}
	_, data, _ := manifestOf(name)
	return data, []byte("signed"), nil
}

func (built) Signature(image.Digest) ([]byte, error) { return []byte("signed"), nil }

func (built) PublicKey() []byte { return []byte("key") }

func (built) Complete(image.Digest) error { return nil }

func (built) Collect([]image.Digest, time.Duration) (int64, error) { return 0, nil }

// makeImages makes the environments known.
func (w *world) makeImages() {
	repo := state.New(w.store)
	for _, name := range environments {
		_, _, digest := manifestOf(name)
		_, err := repo.PutImage(w.ctx, api.Image{
			Digest: string(digest), Environment: name, Architecture: "x86_64", Stacks: []api.Stack{api.StackMetal}, RootBytes: 1 << 20, MetalBytes: 1 << 20,
			KernelVersion: "6.1", BuiltAt: time.Now(),
		})
		w.must(err)
		_, err = repo.SetEnvironment(w.ctx, api.EnvironmentRecord{Name: name, Digest: string(digest), UpdatedAt: time.Now()})
		w.must(err)
	}
}
