package image_test

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/internal/image"
)

func TestEveryChunkOfARootIsVerifiedAndNoOtherPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1, 4096, image.ChunkBytes - 1, image.ChunkBytes, image.ChunkBytes + 1, 3 * image.ChunkBytes}).Draw(t, "size")
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 31 >> 3)
		}
		blob, list, err := image.MakeChunks(bytes.NewReader(data))
		if err != nil || blob.SizeBytes != int64(size) || blob.Digest != image.DigestOf(data) {
			t.Fatalf("MakeChunks = %+v, %v", blob, err)
		}
		root := image.Root{Blob: blob, Chunks: image.Blob{Digest: image.DigestOf(list), SizeBytes: int64(len(list))}, ChunkBytes: image.ChunkBytes}
		chunks, err := image.ParseChunks(list, root)
		if err != nil {
			t.Fatal(err)
		}
		var seen int64
		for i := range chunks.Len() {
			offset, length := chunks.Span(i)
			if offset != seen {
				t.Fatalf("chunk %d begins at %d, want %d", i, offset, seen)
			}
			seen += int64(length)
			piece := bytes.Clone(data[offset : offset+int64(length)])
			if err := chunks.Verify(i, piece); err != nil {
				t.Fatalf("chunk %d: %v", i, err)
			}
			piece[rapid.IntRange(0, length-1).Draw(t, "at")] ^= 1
			if err := chunks.Verify(i, piece); !errors.Is(err, image.ErrDigest) {
				t.Fatalf("a chunk with one wrong bit: %v", err)
			}
			if err := chunks.Verify(i, piece[:length-1]); !errors.Is(err, image.ErrDigest) {
				t.Fatalf("a short chunk: %v", err)
			}
		}
		if seen != int64(size) {
			t.Fatalf("chunks cover %d of %d bytes", seen, size)
		}
		bent := bytes.Clone(list)
		bent[rapid.IntRange(0, len(list)-1).Draw(t, "bent")] ^= 1
		if _, err := image.ParseChunks(bent, root); !errors.Is(err, image.ErrDigest) {
			t.Fatalf("a list with one wrong bit: %v", err)
		}
		root.SizeBytes += image.ChunkBytes
		if _, err := image.ParseChunks(list, root); err == nil {
			t.Fatal("a list that is too short for its root was taken")
		}
	})
}

func TestAManifestIsSignedByOneSiteOnly(t *testing.T) {
	key, err := image.SigningKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := image.SigningKey(bytes.Repeat([]byte{8}, 32))
	if err != nil {
		t.Fatal(err)
	}
	m := image.Manifest{Environment: "e"}
	data, digest, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	signature := image.Sign(key, data)
	if err := image.Verify(image.PublicKey(key), data, signature); err != nil {
		t.Errorf("the site's own signature: %v", err)
	}
	bent := append(bytes.Clone(data), ' ')
	for name, err := range map[string]error{
		"another site":      image.Verify(image.PublicKey(other), data, signature),
		"another manifest":  image.Verify(image.PublicKey(key), bent, signature),
		"no key":            image.Verify(nil, data, signature),
		"no signature":      image.Verify(image.PublicKey(key), data, nil),
		"no domain":         image.Verify(image.PublicKey(key), data, ed25519.Sign(key, data)),
		"signature cut off": image.Verify(image.PublicKey(key), data, signature[:63]),
	} {
		if !errors.Is(err, image.ErrSignature) {
			t.Errorf("%s: %v, want ErrSignature", name, err)
		}
	}
	if _, err := image.Decode(bent, digest); !errors.Is(err, image.ErrDigest) {
		t.Errorf("Decode of another manifest: %v", err)
	}
	if back, err := image.Decode(data, digest); err != nil || back.Environment != "e" {
		t.Errorf("Decode = %+v, %v", back, err)
	}
}
