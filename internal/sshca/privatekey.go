package sshca

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/pem"

	"golang.org/x/crypto/ssh"
)

// marshalPrivateKey writes the format "openssh-key-v1" (PROTOCOL.key of OpenSSH) without encryption. ssh.MarshalPrivateKey does the
// same with random check numbers; they only tell a right pass phrase from a wrong one, so here they are derived from the key
// and the file is the same each time.
func marshalPrivateKey(key ed25519.PrivateKey, comment string) []byte {
	public := key.Public().(ed25519.PublicKey)
	digest := sha256.Sum256(public)
	check := binary.BigEndian.Uint32(digest[:])
	const blockSize = 8 // that of the cipher "none"
	private := ssh.Marshal(struct {
		Check1, Check2  uint32
		Type            string
		Public, Private []byte
		Comment         string
	}{check, check, ssh.KeyAlgoED25519, public, key, comment})
	for i := byte(1); len(private)%blockSize != 0; i++ {
		private = append(private, i)
	}
	content := ssh.Marshal(struct {
		Cipher, KDF, KDFOptions string
		Keys                    uint32
		Public, Private         []byte
	}{"none", "none", "", 1, ssh.Marshal(struct {
		Type   string
		Public []byte
	}{ssh.KeyAlgoED25519, public}), private})
	return pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: append([]byte("openssh-key-v1\x00"), content...)})
}
