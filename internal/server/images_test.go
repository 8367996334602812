package server

import (
	"bytes"
	"errors"
	"io/fs"
	"runtime"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestWhatABuilderCallsAManifestIsNotReadWhenItIsTooLarge(t *testing.T) {
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes), nil)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	root := bytes.Repeat([]byte("root"), size/4)
	digest := image.DigestOf(root)
	if err := i.store.Put(t.Context(), digest, bytes.NewReader(root)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := i.Load(digest); err == nil {
		t.Error("a root was taken for a manifest")
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > size/4 {
		t.Errorf("%d bytes were taken up for it", n)
	}
}

func TestAManifestThatWasRemovedIsNotLoadedAnyMore(t *testing.T) {
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, digest, err := (&image.Manifest{Environment: "debian-mpi"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.store.Put(t.Context(), digest, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Load(digest); err != nil {
		t.Fatal(err)
	}
	const untilTomorrow = -24 * time.Hour // also what was stored just now
	if freed, err := i.Collect(nil, untilTomorrow); err != nil || freed != int64(len(data)) {
		t.Fatalf("%d bytes are free, %v; want %d", freed, err, len(data))
	}
	if _, err := i.Load(digest); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loading what was removed: %v; want that it does not exist", err)
	}
}

func TestTheSiteSignsOnlyWhatSomebodyVouchesFor(t *testing.T) {
	records := map[string]*api.Image{}
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes), func(digest string) *api.Image { return records[digest] })
	if err != nil {
		t.Fatal(err)
	}
	data, digest, err := (&image.Manifest{Environment: "debian-mpi"}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.store.Put(t.Context(), digest, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	by := func(node string, trusted bool, digest image.Digest) api.BuiltBy {
		return api.BuiltBy{Node: node, Trusted: trusted, Digest: string(digest)}
	}
	for name, test := range map[string]struct {
		record *api.Image
		signed bool
	}{
		"a builder has stored it, and nothing is recorded":   {nil, false},
		"its record names no builder":                        {&api.Image{}, false},
		"a node that is not trusted built it":                {&api.Image{BuiltBy: []api.BuiltBy{by("n1", false, digest)}}, false},
		"a node that is not trusted built it twice":          {&api.Image{BuiltBy: []api.BuiltBy{by("n1", false, digest), by("n1", false, digest)}}, false},
		"a trusted builder built something else":             {&api.Image{BuiltBy: []api.BuiltBy{by("n1", true, "sha256:x")}}, false},
		"a trusted builder built it":                         {&api.Image{BuiltBy: []api.BuiltBy{by("n1", true, digest)}}, true},
		"two nodes built it":                                 {&api.Image{BuiltBy: []api.BuiltBy{by("n1", false, digest), by("n2", false, digest)}}, true},
		"two nodes built it, and one of them something else": {&api.Image{BuiltBy: []api.BuiltBy{by("n1", false, digest), by("n2", false, "sha256:x")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if records[string(digest)] = test.record; test.record != nil {
				test.record.Digest = string(digest)
			}
			if _, err := i.Load(digest); err != nil {
				t.Errorf("it can't be read: %v", err)
			}
			_, signature, err := i.Manifest(digest)
			if test.signed && image.Verify(i.PublicKey(), data, signature) != nil || !test.signed && (!errors.Is(err, errUnvouched) || signature != nil) {
				t.Errorf("signature %x, %v; want it signed: %t", signature, err, test.signed)
			}
			if again, _ := i.Signature(digest); !bytes.Equal(again, signature) {
				t.Errorf("the signature alone is %x, with the manifest %x", again, signature)
			}
		})
	}
}
