"""Trained policies as files that run without the tool: ONNX, torch.export, and safetensors with a JSON program."""
