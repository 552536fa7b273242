// Renders a template as Ollama does, for a conversation given as JSON on stdin. Arguments and functions are written as
// they are given, where Ollama writes JSON of its own.
package main

import (
	"encoding/json"
	"os"
	"text/template"
)

type function struct{ Name, Arguments string }
type call struct{ Function function }
type message struct {
	Role, Content string
	ToolCalls     []call
}
type tool struct{ Function string }

func main() {
	var given struct {
		Template, System string
		Messages         []*message
		Tools            []tool
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	values := map[string]any{"System": given.System, "Messages": given.Messages, "Tools": given.Tools}
	if err := template.Must(template.New("").Parse(given.Template)).Execute(os.Stdout, values); err != nil {
		panic(err)
	}
}
