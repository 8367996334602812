package agent

import "net/http"

// NewServerBlobs is the server's store of images as agents reach it.
func NewServerBlobs(server string, client *http.Client) Blobs {
	return serverBlobs{server: server, client: client}
}
