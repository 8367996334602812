// Package mungekey derives the key by which the members of one cluster know each other's users in Slurm: munge's.
//
// It derives from the site secret, as the cluster's SSH keys do (package sshca), so nothing is stored, and no two clusters have the same one.
// All members of a cluster share it, and only their root reads it: whoever has it can say to any of them that they are its root. The package is
// pure. Start with Derive.
package mungekey

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
)

const (
	// MinSecretBytes is the least length of a site secret.
	MinSecretBytes = 32
	// Bytes is the length of a key before it is written in hexadecimal; munged takes any 32 to 1024 bytes (munged(8)).
	Bytes = 64
)

// salt separates these keys from whatever else is derived from the site secret; the version changes with the derivation.
const salt = "nearmetal munge key v1"

// Derive returns the key of a cluster, as text: files that members share are.
func Derive(siteSecret []byte, clusterUID string) ([]byte, error) {
	if len(siteSecret) < MinSecretBytes {
		return nil, fmt.Errorf("the site secret has %d bytes; the minimum is %d", len(siteSecret), MinSecretBytes)
	}
	if clusterUID == "" {
		return nil, errors.New("a key of munge needs a cluster UID")
	}
	key, err := hkdf.Key(sha256.New, siteSecret, []byte(salt), clusterUID, Bytes)
	return hex.AppendEncode(nil, key), err
}
