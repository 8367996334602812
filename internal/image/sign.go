package image

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
)

// ErrSignature: a manifest is not signed by the site whose key was given.
var ErrSignature = errors.New("the image's manifest is not signed by this site")

// signed goes before the manifest into what is signed, so that no other signature of the same key can pass for one.
const signed = "nearmetal image manifest 1\n"

// SigningKey derives the site's key for manifests from the site secret (HKDF-SHA256, RFC 5869): each server of a site has the same one, and
// nothing more is stored.
func SigningKey(siteSecret []byte) (ed25519.PrivateKey, error) {
	seed, err := hkdf.Key(sha256.New, siteSecret, nil, "nearmetal image signing 1", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive the key that images are signed with: %w", err)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// PublicKey is the key that verifies what key signs.
func PublicKey(key ed25519.PrivateKey) ed25519.PublicKey {
	public, _ := key.Public().(ed25519.PublicKey)
	return public
}

// Sign signs an encoded manifest (Ed25519, RFC 8032).
func Sign(key ed25519.PrivateKey, manifest []byte) []byte {
	return ed25519.Sign(key, append([]byte(signed), manifest...))
}

// Verify returns an error that wraps ErrSignature unless signature is of this encoded manifest by the site with that public key.
func Verify(public ed25519.PublicKey, manifest, signature []byte) error {
	if len(public) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: its public key has %d bytes instead of %d", ErrSignature, len(public), ed25519.PublicKeySize)
	}
	if !ed25519.Verify(public, append([]byte(signed), manifest...), signature) {
		return ErrSignature
	}
	return nil
}
