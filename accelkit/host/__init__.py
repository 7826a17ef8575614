"""The side where `kit` is typed: config, images, engines, plans, runs. Never imports torch or the runtime."""
