package agent

import "net/http"

// NewServerBlobs is the server's store of images as agents reach it.
func NewServerBlobs(server, bearer string, client *http.Client) Blobs {
	return serverBlobs{server: server, bearer: bearer, client: client}
}
