package mungekey

import (
	"bytes"
	"testing"
)

func TestEachClusterHasAKeyOfItsOwn(t *testing.T) {
	secret := bytes.Repeat([]byte{7}, MinSecretBytes)
	derive := func(secret []byte, uid string) string {
		t.Helper()
		key, err := Derive(secret, uid)
		if err != nil || len(key) != 2*Bytes {
			t.Fatalf("got %d bytes, %v", len(key), err)
		}
		return string(key)
	}
	key := derive(secret, "u1")
	if derive(secret, "u1") != key {
		t.Error("the same cluster has another key the second time")
	}
	if derive(secret, "u2") == key {
		t.Error("two clusters have the same key")
	}
	if derive(bytes.Repeat([]byte{8}, MinSecretBytes), "u1") == key {
		t.Error("clusters of two sites have the same key")
	}
}

func TestAKeyNeedsASecretAndACluster(t *testing.T) {
	if _, err := Derive(make([]byte, MinSecretBytes-1), "u1"); err == nil {
		t.Error("a short secret passes")
	}
	if _, err := Derive(make([]byte, MinSecretBytes), ""); err == nil {
		t.Error("a cluster without a UID passes")
	}
}
