package server

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestWhatABuilderCallsAManifestIsNotReadWhenItIsTooLarge(t *testing.T) {
	i, err := openImages(t.TempDir(), bytes.Repeat([]byte{7}, trust.SecretBytes))
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
